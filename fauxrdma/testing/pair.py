"""Two HCAs joined by a fabric, in this process and in virtual time, for tests of code that uses verbs.

::

    with Pair() as pair:
        pair.drop(opcode="RDMA_WRITE", nth=3)
        client, server = pair.a.context(), pair.b.context()
        ...                                          # your code, with the contexts or with pair.a.socket
        pair.assert_all_completed()
        pair.assert_no_leaks()
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.transport import TRANSPORTS
from fauxrdma.ib.enums import BthOpcode, WcStatus
from fauxrdma.ib.profiles import DEFAULT_PROFILE
from fauxrdma.sim.fabric_world import WorldNode
from fauxrdma.testing.end import End
from fauxrdma.testing.frame_faults import FaultRule, RuleBook, frames_named
from fauxrdma.testing.in_process import InProcessWorld
from fauxrdma.testing.leaks import ObjectWatch
from fauxrdma.verbs import Context
from fauxrdma.wire.headers import Frame

__all__ = ["Pair", "Side"]

_FRAME_BYTES = 4096
_OVERTAKEN_NS = 20_000
"""How long a frame that is to be overtaken waits for one that does it."""
_NAMES = ("a", "b")


class Pair:
    """Two nodes with an HCA each; `a` and `b` are their sides. A context manager.

    `fabric` is a preset with its options or a YAML file, `transport` one of infiniband, rocev2, rocev1 and iwarp,
    `profile` what the HCAs can do (docs/profiles.md). `seed` is all that chance depends on: the keys and numbers of
    queue pairs, and what rules with a probability do. Two runs with the same seed and the same calls are the same to
    the nanosecond; give fixed PSNs if they are to be the same to the byte.

    Time is fabric time: waits end, and time limits of `CQ.wait`, `get_cq_event` and the like count, in nanoseconds of
    the fabric model, not of the wall clock. A wait that nothing can end raises `Deadlock` at once.

    Raises ConfigError for a fabric, profile or transport that there is not.
    """

    def __init__(
        self,
        fabric: str = "fat-tree",
        *,
        transport: str | None = None,
        seed: int = 0,
        profile: str = DEFAULT_PROFILE,
    ) -> None:
        if transport is not None:
            if transport not in TRANSPORTS:
                raise ConfigError(f"there is no transport {transport!r}: known are {', '.join(TRANSPORTS)}")
            fabric = f"{fabric},transport={transport}"
        self._watch = ObjectWatch()
        self.world = _World(fabric, seed, profile)
        self.a, self.b = Side(self, 0), Side(self, 1)
        self._watch.__enter__()

    # ---- what happens to frames ----------------------------------------------------------------------------------

    def drop(self, opcode: str | None = None, **which: Any) -> FaultRule:
        """Lose the frames that `which` says (`FaultRule`); all, without any. Returns the rule: `hits` counts what it
        did and `remove()` ends it."""
        return self._add("drop", opcode, which)

    def duplicate(self, opcode: str | None = None, *, by_ns: int = 2000, **which: Any) -> FaultRule:
        """Deliver frames twice, the second time `by_ns` later."""
        return self._add("duplicate", opcode, {"by_ns": by_ns, **which})

    def delay(self, by_ns: int, opcode: str | None = None, **which: Any) -> FaultRule:
        """Deliver frames `by_ns` of fabric time later than they would arrive."""
        return self._add("delay", opcode, {"by_ns": by_ns, **which})

    def reorder(self, opcode: str | None = None, *, by_ns: int = _OVERTAKEN_NS, **which: Any) -> FaultRule:
        """Hold frames back until the next one of their direction has arrived, `by_ns` at most."""
        return self._add("reorder", opcode, {"by_ns": by_ns, **which})

    def rnr(self, opcode: str | None = None, **which: Any) -> FaultRule:
        """Have RC requests that need a receive find none (an RNR NAK), whatever is posted: SENDs, and WRITEs with
        immediate data."""
        return self._add("rnr", opcode, which)

    def noise(
        self, *, loss: float = 0.0, duplicate: float = 0.0, reorder: float = 0.0, delay: float = 0.0, rnr: float = 0.0,
        delay_ns: int = 20_000,
    ) -> list[FaultRule]:  # fmt: skip
        """Chances per frame, in both directions, drawn from the pair's seed. Returns the rules."""
        chances = {"drop": loss, "duplicate": duplicate, "reorder": reorder, "delay": delay, "rnr": rnr}
        span = {"duplicate": delay_ns, "delay": delay_ns, "reorder": delay_ns}
        return [
            self._add(action, None, {"probability": chance, "by_ns": span.get(action, 0)})
            for action, chance in chances.items()
            if chance
        ]

    def clear(self) -> None:
        """End all rules, and plug the cable in again."""
        self.world.rules.rules.clear()
        self.world.cut = False

    def cut(self) -> None:
        """Lose everything from now on, as with the cable out. `restore` ends it."""
        self.world.cut = True

    def restore(self) -> None:
        """Let frames through again."""
        self.world.cut = False

    def _add(self, action: str, opcode: str | None, which: dict[str, Any]) -> FaultRule:
        rule = FaultRule(action, opcode, **which)
        self.world.rules.rules.append(rule)
        return rule

    # ---- time ----------------------------------------------------------------------------------------------------

    @property
    def now_ns(self) -> int:
        """Fabric time."""
        return self.world.now

    def run(self, until: Callable[[], Any] | None = None, timeout_s: float = 60.0) -> bool:
        """Let fabric time go on until `until()` is true, without it until nothing is left to happen; `timeout_s` of
        fabric time at most. Returns whether that was reached."""
        return bool(self.world.wait(until or (lambda: self.world.idle), timeout_s))

    def advance(self, ns: int) -> None:
        """Let `ns` of fabric time pass. Raises ConfigError for a negative number."""
        if ns < 0:
            raise ConfigError(f"fabric time does not go back, got {ns} ns")
        self.world.wait(lambda: False, ns / 1e9)

    # ---- what there is to see ------------------------------------------------------------------------------------

    @property
    def trace(self) -> list[dict[str, Any]]:
        """What happened so far, in order: `posted`, `sent`, `arrived`, `completed` as in a trace of virtual time
        (docs/clocks.md), and what rules did: `drop`, `duplicate`, `delay`, `reorder`, `rnr`. `t` is fabric time, ns."""
        return [json.loads(line) for line in self.world.trace_lines()]

    def frames(self, opcode: str | None = None, event: str = "arrived") -> list[dict[str, Any]]:
        """The frames of the trace: those of an opcode or a family only (`frames_named`), those that arrived unless
        `event` says another."""
        names = None if opcode is None else {BthOpcode(code).name for code in frames_named(opcode)}
        return [
            entry for entry in self.trace if entry["event"] == event and (names is None or entry.get("opcode") in names)
        ]

    def ends(self) -> tuple[End, End]:
        """A connected RC queue pair on each side, with a region of 64 KiB, a completion queue and a channel."""
        one, other = End(self.a.context()), End(self.b.context())
        one.connect(other)
        return one, other

    def assert_all_completed(self) -> None:
        """Let what is under way end, then raise AssertionError unless every posted send request has been carried out,
        none has failed, and every completion was polled. Receives that wait for a message are no failure."""
        self.run()
        problems = [*self.world.unfinished(), *self.world.unpolled()]
        problems += [
            f"{_NAMES[self.world.node_number(entry['lid'])]}: wr_id {entry['wr_id']} of QP 0x{entry['qp']:x} "
            f"completed at {entry['t']} ns with {WcStatus(entry['status']).name}"
            for entry in self.trace
            if entry["event"] == "completed" and entry["status"]
        ]
        if problems:
            raise AssertionError("\n".join(["not everything completed:", *(f"  {line}" for line in problems)]))

    def assert_no_leaks(self) -> None:
        """Raise LeakedObjects, naming each and where it was made, when verbs objects are open that were made since the
        pair was, contexts that the pair opened left out."""
        self._watch.check()

    # ---- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the contexts, and end everything. Idempotent."""
        self._watch.__exit__(None, None, None)
        self._watch.close_all()
        self.world.close()

    def __enter__(self) -> Pair:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Pair({self.world.topology.name!r}, {self.now_ns} ns)"


class Side:
    """One node of a pair."""

    def __init__(self, pair: Pair, node: int) -> None:
        self._pair = pair
        self.node = node
        self.name = _NAMES[node]

    @property
    def socket(self) -> str:
        """What `Context(name, socket)` and $FAUXRDMA_SOCKET take for this node."""
        return self._pair.world.socket_path(self.node)

    def context(self, hca: str = "hca1") -> Context:
        """Open an HCA of the node; the pair closes it in the end. Raises VerbsError(ENODEV) for one that is not
        there."""
        context = Context(hca, self.socket)
        self._pair._watch.ignore(context)
        return context

    def kill(self) -> None:
        """End all programs of this node at once, as SIGKILL would: their queue pairs are gone, and their contexts say
        that the daemon is (EIO). Others may be opened afterwards."""
        self._pair.world.hang_up(self.node)


class _World(InProcessWorld):
    """With rules for frames."""

    def __init__(self, fabric: str, seed: int, profile: str) -> None:
        self.rules = RuleBook(seed)
        self.cut = False
        super().__init__(fabric, 2, 1, seed=seed, profile=profile)

    def _make_node(self, number: int, quantum: int, adaptive: bool) -> WorldNode:
        return _Node(self, number, self._turns, min(quantum, _FRAME_BYTES), adaptive=adaptive)

    def note(self, event: str, frame: Frame) -> None:
        """Put what a rule did into the trace."""
        name = BthOpcode(frame.opcode).name
        self._lines.append(
            json.dumps({"t": self.now, "event": event, "lid": frame.slid, "to": frame.dlid, "qp": frame.dest_qpn,
                        "opcode": name, "psn": frame.psn, "bytes": frame.nbytes}) + "\n"
        )  # fmt: skip

    def node_number(self, lid: int) -> int:
        """The node of an HCA."""
        node = self.node_of(lid)
        assert node is not None
        return self._nodes.index(node)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to happen."""
        return self._next_ns() is None

    def unfinished(self) -> list[str]:
        """Send requests that are not carried out, in words."""
        out = []
        for node, hca in self._all_hcas():
            for qpn, rings in hca.rings.items():
                requester = hca.engine._requesters.get(qpn)
                begun = len(getattr(requester, "wqes", ())) if requester is not None else 0
                count = begun + rings.pending_sends()
                if count:
                    state = hca.engine.qp(qpn)
                    out.append(f"{_NAMES[node]}: {count} send requests of QP 0x{qpn:x} are not carried out "
                               f"({state.state.name if state else 'gone'})")  # fmt: skip
        return out

    def unpolled(self) -> list[str]:
        """Completions that nobody took, in words."""
        out = []
        for node, sessions in enumerate(self._sessions):
            for session in sessions:
                for cqn, cq in session.queues.cqs.items():
                    if len(cq.ring):
                        out.append(f"{_NAMES[node]}: {len(cq.ring)} completions of CQ {cqn} were not polled")
        return out

    def _all_hcas(self) -> list[tuple[int, Any]]:
        return [(number, hca) for number, node in enumerate(self._nodes) for hca in node.hcas.values()]


class _Node(WorldNode):
    """Goes by the rules for what it is sent."""

    _overtaken: Frame | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._not_ready: set[int] = set()

    def hold(self, frame: Frame) -> None:
        """As VirtualDataPath."""
        world = self._world
        assert isinstance(world, _World)
        if frame.slid in self.hcas:
            super().hold(frame)
            return
        if world.cut:
            world.note("drop", frame)
            return
        late, self._overtaken = self._overtaken, None
        rule = world.rules.verdict(frame, "a->b" if world.node_number(frame.slid) == 0 else "b->a")
        if rule is not None:
            world.note(rule.action, frame)
            if rule.action == "drop":
                self._overtaken = late
                return
            if rule.action == "duplicate":
                self._own(replace(frame, arrival_ns=frame.arrival_ns + rule.by_ns))
            elif rule.action == "rnr":
                self._not_ready.add(id(frame))
            else:
                if rule.action == "reorder":
                    self._overtaken = frame
                frame.arrival_ns += rule.by_ns
        if late is not None:
            late.arrival_ns = min(late.arrival_ns, frame.arrival_ns + 1)
        super().hold(frame)

    def _own(self, frame: Frame) -> None:
        super().hold(frame)

    def _lay_down(self, frame: Frame) -> None:
        hca = self.hcas.get(frame.dlid)
        qp = hca.engine.qp(frame.dest_qpn) if hca is not None and id(frame) in self._not_ready else None
        self._not_ready.discard(id(frame))
        if qp is None:
            super()._lay_down(frame)
            return
        posted, qp.rq = qp.rq, _Nothing()
        try:
            super()._lay_down(frame)
        finally:
            qp.rq = posted


class _Nothing:
    """A receive queue without receives."""

    def fetch(self) -> None:
        """None is posted."""

    def __len__(self) -> int:
        return 0
