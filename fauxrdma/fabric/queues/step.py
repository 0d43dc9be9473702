"""The queue-level model: one step moves bytes from slot to slot, all hops at once.

A step of dt ns, from the state at its start (`Layout` says what slots and lanes are)::

    senders offer bytes            congestion control, narrow links in the host
    lanes let through              credits, PFC; each link shares out C dt among its priorities (ETS)
    every slot of a lane drains    in proportion to its bytes
    what moved arrives             marked by queue length (ECN), dropped where there is no room
    everybody learns               CNPs, NAKs, PAUSE and XON frames travel back

Nothing else is there: that a paused lane holds up flows that do not go where it is full (head-of-line blocking), that
pauses spread from switch to switch, that they close a circle, all follow from it.

Bytes take a step per hop here whatever the hop's delay, so a flow's time is read off shifted by its hops, and the real
delays are added (`Way.latency_ns`). A queue is what is left in it after a step's drain: what only passes through is
none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fauxrdma.fabric.queues.buffers import Buffers
from fauxrdma.fabric.queues.counters import FlowCounters, LaneCounters
from fauxrdma.fabric.queues.credits import credit_room
from fauxrdma.fabric.queues.dcqcn import Dcqcn
from fauxrdma.fabric.queues.deadlock import DeadlockDetector
from fauxrdma.fabric.queues.delay_line import DelayLine
from fauxrdma.fabric.queues.ecn import NotificationPoint, marking_probability
from fauxrdma.fabric.queues.ets import share_links
from fauxrdma.fabric.queues.last_byte import LastBytes
from fauxrdma.fabric.queues.layout import Layout
from fauxrdma.fabric.queues.line_rate import LineRate, SendControl
from fauxrdma.fabric.queues.packet_loss import PacketLoss
from fauxrdma.fabric.queues.pfc import PauseControl
from fauxrdma.fabric.queues.recovery import GoBackN, Selective
from fauxrdma.fabric.queues.settings import EcnSettings, MarkAt, QueueSettings
from fauxrdma.fabric.queues.storms import Storm, lanes_held, now_held
from fauxrdma.fabric.queues.sums import sums
from fauxrdma.fabric.queues.tcp import TcpLike
from fauxrdma.fabric.transport import CongestionControl, FlowControl, LossRecovery

__all__ = ["QueueModel", "Record"]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.intp]
Record = Callable[[float, str, str, float], None]
"""Is told what happens: time in ns, what, to whom (a lane or `flow n`), how much."""

_CRUMB = 1e-6
"""Bytes that are nothing."""


class QueueModel:
    """The flows `sizes` (F,) in bytes over a layout. `random` draws marks, lost packets and lost XON frames; `mtu` is
    the payload of a packet. Nothing is sent before `start`. `storms`: HCAs that take nothing in for a while."""

    def __init__(
        self,
        layout: Layout,
        sizes: Sequence[float],
        settings: QueueSettings,
        mtu: int,
        random: np.random.Generator,
        record: Record = lambda at_ns, what, whom, how_much: None,
        storms: Sequence[Storm] = (),
    ) -> None:
        self.layout = layout
        self.settings = settings
        self._record = record
        self._random = random
        self._mtu = float(mtu)
        self.sizes: Floats = np.array(sizes, dtype=np.float64)
        flows, lanes = len(sizes), layout.count
        wired = layout.has_ingress
        credit = settings.flow_control is FlowControl.CREDITS
        self._by_credit: Flags = wired & (credit | ~layout.is_cable)
        self._by_pause: Flags = wired & layout.is_cable & (settings.flow_control is FlowControl.PFC)
        self._round_trip: Floats = 2 * layout.propagation_ns + mtu / layout.rate
        lane = zip(layout.rate.tolist(), self._round_trip.tolist(), layout.is_cable.tolist(), strict=True)
        self._lane_buffer: Floats = np.array([settings.buffers.of_lane(r, t, cable=wire) for r, t, wire in lane])
        self.step_ns = dt = self._fitting_step()
        self._lane_buffer = np.where(self._by_credit, self._lane_buffer, np.inf)
        self._round_trip[~self._by_credit] = 1.0
        self.now_ns = 0.0
        self._steps = 0
        self._budget: Floats = layout.link_rate * dt
        self._lane_budget: Floats = layout.rate * dt
        self._weights: Floats = np.array([settings.ets_weights.get(p, 1.0) for p in layout.priority.tolist()])
        self._flat_lane = layout.lane.ravel()
        self._flat_came_by = layout.came_by.ravel()
        self._rows = np.arange(flows)

        self._marks = settings.ecn is not None
        self._go_back = settings.loss_recovery is LossRecovery.GO_BACK_N
        planes = 1 + self._marks + self._go_back
        self._state: Floats = np.zeros((planes, *layout.lane.shape))
        self._held: Floats = np.zeros(lanes)
        self._freed: Floats = np.zeros(lanes)
        self._served: Floats = np.zeros(lanes)
        self.unsent: Floats = np.zeros(flows)
        self._in_network: Floats = np.zeros(flows)
        self._started: Flags = np.zeros(flows, dtype=bool)
        self._done: Flags = np.zeros(flows, dtype=bool)
        self._behind: list[tuple[int, int]] = []

        self._last_bytes = LastBytes(layout.lane, layout.last, layout.rate)
        self._before_gaps = LastBytes(layout.lane, layout.last, layout.rate)
        self._buffers = Buffers(layout, settings, self._by_pause, dt)
        delay = 2 * layout.propagation_ns + settings.pfc.response_ns
        self.pause_control = PauseControl(settings.pfc, layout.rate, delay, self._by_pause, dt, random)
        self._detector = DeadlockDetector(lanes, settings.deadlock_ns, self._mtu)
        back = np.ceil(layout.latency_ns / dt).astype(np.intp)
        self._cnps = DelayLine(back)
        interval = settings.dcqcn.cnp_interval_ns if settings.congestion_control is CongestionControl.DCQCN else 0.0
        self._notification = NotificationPoint(flows, interval, self._mtu, random)
        self._recovery = GoBackN(back, self.sizes, self._mtu, settings.retry_timeout_ns) if self._go_back else None
        self._loss = PacketLoss(flows, layout.lane.shape[1] - 1, self._mtu, random)
        self._repair = Selective(2 * back) if settings.loss_recovery is LossRecovery.SELECTIVE else None
        self.control: SendControl = self._control(layout.line_rate())
        if settings.ecn is not None:
            self._k_min, self._k_max = self._mark_thresholds(settings.ecn)
        self.lanes = LaneCounters.of(lanes)
        self.flows = FlowCounters.of(flows)
        self.deadlock: list[int] = []
        self._storms = [(storm, lanes_held(storm, layout)) for storm in storms]

    def _fitting_step(self) -> float:
        """So long that at full rate a lane's buffer lasts for two, or its rate would be bounded by the step."""
        fits = np.where(self._by_credit, self._lane_buffer / self.layout.rate / 2, np.inf)
        return float(min(self.settings.step_ns, fits.min(initial=np.inf)))

    def _control(self, line: Floats) -> SendControl:
        kind = self.settings.congestion_control
        if kind is CongestionControl.DCQCN:
            return Dcqcn(self.settings.dcqcn, line)
        if kind is CongestionControl.TCP:
            return TcpLike(line, 2 * self.layout.latency_ns, self._mtu)
        return LineRate(line, self.step_ns)

    def _mark_thresholds(self, ecn: EcnSettings) -> tuple[Floats, Floats]:
        found = [ecn.thresholds(rate) for rate in self.layout.signalling]
        low = np.where(self.layout.from_switch, [k_min for k_min, _ in found], np.inf)
        return low, np.where(self.layout.from_switch, [k_max for _, k_max in found], np.inf)

    # -- the outside

    def start(self, flow: int, after: int | None = None) -> None:
        """Flow number `flow` begins to send in the next step; if `after` another, of the same queue pair, behind what
        that has left to send and with its congestion control as it is."""
        self.unsent[flow] = self.sizes[flow]
        self._started[flow] = True
        if after is not None:
            self.control.inherit(flow, after)
            self._behind.append((flow, after))

    @property
    def busy(self) -> bool:
        """Whether a flow that has started is not complete, or bytes of one are still under way."""
        return bool((self._started & ~self._done).any()) or float(self._in_network.sum()) > 1.0

    def jump(self, to_ns: float) -> None:
        """Nothing is under way: go on at the first step not before `to_ns`."""
        self._steps = max(self._steps, int(np.ceil(to_ns / self.step_ns)))
        self.now_ns = self._steps * self.step_ns

    def step(self) -> list[tuple[int, float]]:
        """Go on by a step. The flows that became complete in it, and when (ns), delays included."""
        layout, state, now = self.layout, self._state, self.now_ns
        lanes = layout.count
        self._offer()
        waiting = sums(self._flat_lane, state[0].ravel(), lanes + 1)[:lanes]
        self._last_bytes.join(now, waiting, self._served, state[0])
        self._before_gaps.join(now, waiting, self._served, state[-1])
        room = self._room(now)
        granted = share_links(
            self._budget, np.minimum(waiting, room), self._weights, layout.link_of, classes=layout.has_classes
        )
        part = np.zeros(lanes + 1)
        np.divide(granted, waiting, out=part[:lanes], where=waiting > 0)
        moved = state * part[layout.lane]
        state -= moved
        state[:, :, 0] = 0.0
        sent = moved[0, :, 0].copy()
        queue = waiting - granted
        occupancy = sums(self._flat_came_by, state[0].ravel(), lanes + 1)[:lanes]
        if self._marks:
            self._mark(queue, moved)
        lost = self._drop(now, queue, occupancy, granted, moved)
        state[:, :, 1:] += moved[:, :, :-1]
        delivered = moved[:, self._rows, layout.last]

        before, self._served = self._served, self._served + granted
        self._freed = self._held - occupancy
        self._held = occupancy + granted
        self._count(waiting, room, queue, occupancy, sent, delivered)
        self.unsent -= sent
        self._in_network += sent - delivered[0]
        if lost is not None:
            self._in_network -= lost
        if self.settings.flow_control is FlowControl.PFC:
            self._pause(now, occupancy)
        self._learn(now, before, sent, delivered)
        complete = self._complete(before, granted, sent)
        self.deadlock = self._detector.look(now, self._served, queue, state[0], layout.lane, layout.came_by)
        self._steps += 1
        self.now_ns = self._steps * self.step_ns
        return complete

    # -- the parts of a step

    def _offer(self) -> None:
        """Put into each sender's slot what it wants to send."""
        queued = self._in_network if self.settings.congestion_control is CongestionControl.TCP else None
        limits = self.control.limits(queued, self.step_ns)
        want = np.minimum(limits, self.unsent)
        if self._behind:
            for flow, other in self._behind:
                want[flow] = min(want[flow], max(limits[flow] - want[other], 0.0))
            self._behind = [pair for pair in self._behind if self.unsent[pair[1]] > _CRUMB]
        for links, rates in self.layout.source_columns:
            load = sums(links, want, len(rates))
            with np.errstate(divide="ignore", invalid="ignore"):
                fits = np.where(load > 0, np.minimum(rates * self.step_ns / load, 1.0), 1.0)
            want *= fits[links]
        self._state[:, :, 0] = 0.0
        self._state[0, :, 0] = want
        if self._recovery is not None:
            self._state[-1, :, 0] = np.where(self._recovery.gap, 0.0, want)

    def _room(self, now: float) -> Floats:
        """What flow control lets through each lane."""
        # What is there will leave as fast as it just did, and as it does is room again.
        room = credit_room(self._lane_buffer + self._freed, self._held, self._round_trip, self.step_ns)
        if self.settings.flow_control is FlowControl.PFC:
            held = self.pause_control.held(now)
            if held is not None:
                room[held] = 0.0
        elif self.settings.flow_control is FlowControl.CREDITS:
            for lanes in now_held(self._storms, now):
                room[lanes] = 0.0
        return room

    def _mark(self, queue: Floats, moved: Floats) -> None:
        assert self.settings.ecn is not None
        if not (queue > self._k_min).any():
            return
        chance = np.append(marking_probability(queue, self._k_min, self._k_max, self.settings.ecn.p_max), 0.0)
        lane = self.layout.lane
        if self.settings.ecn.mark_at is MarkAt.DEQUEUE:
            new = (moved[0] - moved[1]) * chance[lane]
            moved[1] += new
            by = self._flat_lane
        else:
            new = (moved[0, :, :-1] - moved[1, :, :-1]) * chance[lane[:, 1:]]
            moved[1, :, :-1] += new
            by = lane[:, 1:].ravel()
        self.lanes.marked += sums(by, new.ravel(), self.layout.count + 1)[:-1]

    def _drop(self, now: float, queue: Floats, occupancy: Floats, granted: Floats, moved: Floats) -> Floats | None:
        """Take out of `moved` what finds no room where it arrives; how much of each flow (F,), None for nothing."""
        if self.settings.flow_control is FlowControl.CREDITS:
            return None
        layout = self.layout
        used = self._buffers.used(occupancy)
        refused = None
        if self.settings.flow_control is FlowControl.NONE:
            ahead = layout.lane[:, 1:].ravel()
            joining = sums(ahead, moved[0, :, :-1].ravel(), layout.count + 1)[:-1]
            refused = self._buffers.refuse(used, queue, joining)
        overflow = self._buffers.overflow(used, granted)
        if refused is None and overflow is None and not self._loss.pending:
            return None
        part = np.zeros(moved.shape[1:])[:, :-1]
        if refused is not None:
            part += np.append(refused, 0.0)[layout.lane[:, 1:]]
        if overflow is not None:
            part = np.maximum(part, np.append(overflow, 0.0)[layout.lane[:, :-1]])
        part[self._done] = 0.0  # the last byte of a complete flow is through
        arriving = moved[0, :, :-1]
        lost = self._loss.lose(part, arriving)
        hit = np.flatnonzero(lost.any(axis=1))
        if not len(hit):
            return None
        chance = part[hit]
        np.divide(lost, arriving, out=part, where=arriving > 0)
        at = layout.lane[:, 1:] if refused is not None else layout.lane[:, :-1]
        self.lanes.dropped += sums(at.ravel(), lost.ravel(), layout.count + 1)[:-1]
        if self._recovery is not None:
            self._open_gaps(hit, lost, part, chance, moved)
        moved[: len(moved) - self._go_back, :, :-1] *= 1.0 - part
        by_flow: Floats = lost.sum(axis=1)
        self.flows.dropped += by_flow
        self._last_bytes.lose(hit)
        if self._repair is not None:
            self._repair.dropped(hit, by_flow[hit])
        self._record(now, "drop", "", float(by_flow.sum()))
        return by_flow

    def _open_gaps(self, hit: Numbers, lost: Floats, part: Floats, chance: Floats, moved: Floats) -> None:
        """Of what arrives where a packet was dropped, only what comes before the first such packet stays in order."""
        assert self._recovery is not None
        good = moved[-1]
        slot = lost.shape[1] - 1 - np.argmax(lost[hit, ::-1] > 0, axis=1)
        # How many packets come before the first that is dropped is drawn, as each was to be dropped by itself.
        with np.errstate(divide="ignore"):
            each = np.log1p(-chance[np.arange(len(hit)), slot])
            packets = np.floor(np.log(1.0 - self._random.random(len(hit))) / each)
        prefix = np.minimum(good[hit, slot] * (1.0 - part[hit, slot]), packets * self._mtu)
        before = np.arange(good.shape[1])[None, :] < slot[:, None]
        good[hit] = np.where(before, 0.0, good[hit])
        good[hit, slot] = prefix
        state = self._state[-1]
        state[hit] = np.where(before | (np.arange(good.shape[1])[None, :] == slot[:, None]), 0.0, state[hit])
        opened = self._recovery.dropped(hit, state[hit].sum(axis=1) + good[hit].sum(axis=1))
        arrives = np.zeros(len(self.sizes), dtype=np.intp)
        arrives[hit] = slot + 1
        self._before_gaps.follow(opened, arrives[opened])

    def _pause(self, now: float, occupancy: Floats) -> None:
        if not self._by_pause.any():
            return
        xoff = self._buffers.xoff(occupancy)
        for lanes in now_held(self._storms, now):
            xoff[lanes] = -1.0
        # Packets come and go whole: an ingress holds up to one more than the fluid says.
        if (occupancy > xoff - self._mtu).any():
            occupancy = np.where(occupancy > 0, occupancy + self._mtu * self._random.random(len(occupancy)), 0.0)
        begun, ended = self.pause_control.observe(now, occupancy, xoff)
        for what, found in (("pause", begun), ("xon", ended)):
            for lane in found.tolist():
                self._record(now, what, self.layout.name(lane), float(occupancy[lane]))

    def _learn(self, now: float, before: Floats, sent: Floats, delivered: Floats) -> None:
        notified = None
        if self._marks:
            if delivered[1].any():
                answered = np.flatnonzero(self._notification.answer(now, delivered[1]))
                if len(answered):
                    self._cnps.send(answered, np.ones(len(answered)))
            arrived = self._cnps.step()
            if arrived is not None:
                notified = arrived > 0
                self.flows.notified += notified
        restarted: Numbers | None = None
        if self._recovery is not None:
            reached, _ = self._before_gaps.leave(now, before, self._served, self.step_ns)
            if len(reached):
                good = self._state[-1, reached]
                there = good[np.arange(len(reached)), self.layout.last[reached] + 1]
                behind = self._in_network[reached] - (good.sum(axis=1) - there)
                self._recovery.reached(now, reached, self.unsent[reached] + behind > self._mtu / 2)
            restarted = self._recovery.restart(now, self._state[-1], self.unsent)
        elif self._repair is not None:
            restarted = self._repair.restart(self.unsent)
        lost = None
        if restarted is not None and len(restarted):
            lost = np.zeros(len(sent), dtype=bool)
            lost[restarted] = True
            self.flows.restarts += lost
            if self._recovery is not None:
                self._loss.forget(restarted)
            for flow in restarted.tolist():
                self._record(now, "restart", f"flow {flow}", float(self.unsent[flow]))
        self.control.step(now, sent, delivered[0], notified, lost)

    def _complete(self, served_before: Floats, granted: Floats, sent: Floats) -> list[tuple[int, float]]:
        layout, dt = self.layout, self.step_ns
        out = self._started & ~self._done & (self.unsent < _CRUMB)
        if self._recovery is not None:
            out &= ~self._recovery.gap
        if self._repair is not None:
            out &= self._repair.pending == 0.0
        gone, offset = self._last_bytes.leave(self.now_ns, served_before, self._served, dt)
        through = out & (layout.last == 0)
        if through.any():  # within a host: there is no queue for the last byte to wait in
            direct = np.flatnonzero(through)
            lanes = layout.lane[direct, 0]
            gone = np.concatenate([gone, direct])
            offset = np.concatenate([offset, np.minimum(granted[lanes] / layout.rate[lanes], dt)])
        self._last_bytes.follow(np.flatnonzero(out & (layout.last > 0)))
        if not len(gone):
            return []
        self._last_bytes.lose(gone)
        self._done[gone] = True
        at = self.now_ns + offset - layout.last[gone] * dt + layout.latency_ns[gone]
        return list(zip(gone.tolist(), at.tolist(), strict=True))

    def _count(
        self, waiting: Floats, room: Floats, queue: Floats, occupancy: Floats, sent: Floats, delivered: Floats
    ) -> None:
        lanes, flows = self.lanes, self.flows
        lanes.nbytes = self._served
        np.maximum(lanes.queue_max, np.where(self.layout.from_switch, queue, 0.0), out=lanes.queue_max)
        np.maximum(lanes.ingress_max, occupancy, out=lanes.ingress_max)
        could = np.minimum(waiting, self._lane_budget)
        short = could > room + _CRUMB
        if short.any():
            lanes.stalled_ns[short] += self.step_ns * (1.0 - room[short] / could[short])
        flows.sent += sent
        flows.arrived += delivered[0]
        flows.delivered += delivered[-1] if self._go_back else delivered[0]
