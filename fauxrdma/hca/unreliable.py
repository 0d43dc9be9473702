"""What UC and UD have in common: nothing comes back, so a send is done when its last frame has been handed to the link.

Three rules follow (IBTA vol. 1, 9.8 and 10.3.1.6):

- The payload of a frame is copied when it is cut. The completion tells the application that its memory is its own
  again, while the frame may still wait for a socket; a reliable queue pair completes later and needs no copy.
- A request that fails locally completes with its status and takes the queue pair to SQE: later sends are flushed,
  receives go on, and a modify to RTS is all it takes to send again.
- What the receiver cannot use vanishes: no answer, no completion, no change of state. Only a receive request that is
  itself broken (a bad lkey) is told, to its own application, and ends the queue pair.
"""

from __future__ import annotations

from fauxrdma.hca.events import Action, Complete
from fauxrdma.hca.local_work import execute_local
from fauxrdma.hca.queue_pair import QueuePair
from fauxrdma.hca.work_queue import RecvWqe, SendWqe
from fauxrdma.ib.enums import QpState, SendFlags, WcOpcode, WcStatus, WrOpcode
from fauxrdma.ib.work import WC, WC_OPCODE_OF, failed
from fauxrdma.memory.regions import Fault, KeyTable
from fauxrdma.memory.spans import Piece, Unreachable
from fauxrdma.wire.headers import Frame

__all__ = ["UnreliableRequester", "UnreliableResponder"]

_RTS = QpState.IBV_QPS_RTS
_SQD = QpState.IBV_QPS_SQD
_SIGNALED = int(SendFlags.IBV_SEND_SIGNALED)
_RECEIVING = (QpState.IBV_QPS_RTR, QpState.IBV_QPS_RTS, QpState.IBV_QPS_SQD, QpState.IBV_QPS_SQE)


class UnreliableRequester:
    """Sender state machine of UC and UD; `_check` and `_cut` are the transport's own."""

    __slots__ = ("_done", "keys", "lid", "next_psn", "qp", "queued", "retransmits", "wqe")

    _local: frozenset[int] = frozenset()
    """Operations of this transport that send nothing."""

    def __init__(self, qp: QueuePair, keys: KeyTable, lid: int) -> None:
        self.qp = qp
        self.keys = keys
        self.lid = lid
        self.retransmits = 0
        self.queued: list[int] = []
        self.reset()

    def reset(self) -> None:
        """Back to the beginning; outstanding work is forgotten without completions (RESET)."""
        self.wqe: SendWqe | None = None  # being cut, or fetched and not begun
        self._done: SendWqe | None = None
        self.next_psn = 0

    def start(self) -> None:
        """Entering RTS from RTR: take the initial PSN from the attributes."""
        self.next_psn = self.qp.attr.sq_psn

    def has_work(self) -> bool:
        """Whether `next_frame` might yield something now."""
        state = self.qp.state
        if state == _RTS:
            return self.wqe is not None or len(self.qp.sq) > 0
        return state == _SQD and not self.drained()

    def drain(self) -> None:
        """Entering SQD: nothing has to be done for that."""

    def drained(self) -> bool:
        """Whether no message is half sent."""
        return self.wqe is None or self.wqe.sent == 0

    def current(self) -> SendWqe | None:
        """The request that is to be sent next, its memory resolved; None when there is none."""
        wqe = self.wqe
        if wqe is None:
            wqe = self.wqe = self.qp.sq.fetch()
        if wqe is not None and not wqe.checked:
            wqe.checked = True
            self._check(wqe)
        return wqe

    def next_frame(self, max_payload: int, now: int, out: list[Action]) -> Frame | None:
        """Cut the next burst of at most `max_payload` bytes; follow it by `handed_over`. Local operations whose turn
        has come are executed on the way."""
        wqe = self.current() if self.has_work() else None
        while wqe is not None and wqe.failure is None and wqe.opcode in self._local:
            wqe.failure = execute_local(wqe, self.qp, self.keys)
            if wqe.failure is None:
                self.wqe, self._done = None, wqe
                self.handed_over(now, out)
                wqe = self.current() if self.has_work() else None
        if wqe is None or wqe.failure is not None:
            return None
        try:
            frame = self._cut(wqe, max_payload)
        except Unreachable as error:
            self._fail(wqe, WcStatus.IBV_WC_LOC_PROT_ERR, f"{WrOpcode(wqe.opcode).name} wr_id {wqe.wr_id}: {error}")
            return None
        if frame.payload:
            frame.payload = (memoryview(b"".join(frame.payload)),)
        if wqe.cut:
            self.wqe, self._done = None, wqe
        return frame

    def handed_over(self, now: int, out: list[Action]) -> None:
        """The link has the frame: complete the request that it ended."""
        wqe, self._done = self._done, None
        if wqe is not None and (wqe.flags & _SIGNALED or self.qp.sq_sig_all):
            out.append(Complete(self.qp.send_cqn, self._wc(wqe, WcStatus.IBV_WC_SUCCESS, now)))

    def _check(self, wqe: SendWqe) -> None:
        raise NotImplementedError

    def _cut(self, wqe: SendWqe, max_payload: int) -> Frame:
        raise NotImplementedError

    def _fail(self, wqe: SendWqe, status: WcStatus, reason: str) -> None:
        wqe.failure = status
        self.qp.last_error = reason

    def _gather(self, wqe: SendWqe) -> None:
        """Resolve the local memory of a request: its pieces and length, or its failure."""
        if wqe.inline is not None:
            wqe.pieces = [memoryview(wqe.inline)]
            wqe.length = len(wqe.inline)
            return
        for addr, length, lkey in wqe.sges:
            if length == 0:
                continue
            view = self.keys.local(self.qp.pd, addr, length, lkey, writing=False)
            if isinstance(view, Fault):
                name = WrOpcode(wqe.opcode).name
                self._fail(wqe, WcStatus.IBV_WC_LOC_PROT_ERR, f"{name} wr_id {wqe.wr_id}: {view.reason}")
                return
            wqe.pieces.append(view)
            wqe.length += length

    def revoke(self, memory: object) -> bool:
        """The region with this memory is deregistered: a message that is being sent fails."""
        wqe = self.wqe
        if wqe is None or not any(piece.obj is memory for piece in wqe.pieces):
            return False
        wqe.pieces = []
        name = WrOpcode(wqe.opcode).name
        self._fail(wqe, WcStatus.IBV_WC_LOC_PROT_ERR, f"{name} wr_id {wqe.wr_id}: its memory was deregistered")
        return True

    def local_failure(self) -> WcStatus | None:
        """The status of the request that failed locally."""
        return self.wqe.failure if self.wqe is not None else None

    def next_deadline_ns(self) -> int | None:
        """Nothing is waited for."""
        return None

    def on_timer(self, now: int) -> WcStatus | None:
        """Nothing is waited for."""
        return None

    def flush(self, status: WcStatus, now: int, out: list[Action]) -> None:
        """Complete the oldest request with `status` and the rest with WR_FLUSH_ERR."""
        wqe = self.wqe if self.wqe is not None else self.qp.sq.fetch()
        self.wqe = None
        while wqe is not None:
            out.append(Complete(self.qp.send_cqn, self._wc(wqe, status, now)))
            status = WcStatus.IBV_WC_WR_FLUSH_ERR
            wqe = self.qp.sq.fetch()

    def _wc(self, wqe: SendWqe, status: WcStatus, now: int) -> WC:
        if status != WcStatus.IBV_WC_SUCCESS:
            return failed(wqe.wr_id, status, self.qp.qpn, now, wqe.index)
        opcode = WC_OPCODE_OF[wqe.opcode]
        return WC(wqe.wr_id, status, opcode, qp_num=self.qp.qpn, timestamp_ns=now, wqe_index=wqe.index)


class UnreliableResponder:
    """Receiver state machine of UC and UD; `place` and `finish` are the transport's own."""

    __slots__ = ("_broken", "_pieces", "_receive", "closing", "keys", "lid", "qp")

    def __init__(self, qp: QueuePair, keys: KeyTable, lid: int) -> None:
        self.qp = qp
        self.keys = keys
        self.lid = lid
        self.closing = False
        self.reset()

    @property
    def jobs(self) -> tuple[()]:
        """Nothing is ever answered."""
        return ()

    def reset(self) -> None:
        """Back to the beginning (RESET)."""
        self._receive: RecvWqe | None = None
        self._pieces: list[Piece] = []
        self._broken: Fault | None = None

    def start(self) -> None:
        """Entering RTR: whatever PSN comes first is the right one."""

    @property
    def receiving(self) -> bool:
        """Whether frames are heard at all; the send queue's error is none of the receiver's."""
        return self.qp.state in _RECEIVING

    def _take_receive(self) -> Fault | bool:
        """Make sure a receive request is at hand and its memory resolved. False when none is posted; a Fault when the
        request itself is broken.

        A receive that was taken for a message that then vanished serves the next one."""
        if self._receive is not None:
            return self._broken or True
        wqe = self.qp.rq.fetch()
        if wqe is None:
            return False
        self._receive = wqe
        self._pieces = []
        self._broken = None
        for addr, length, lkey in wqe.sges:
            if length == 0:
                continue
            view = self.keys.local(self.qp.recv_pd, addr, length, lkey, writing=True)
            if isinstance(view, Fault):
                self._broken = Fault(f"posted receive wr_id {wqe.wr_id}: {view.reason}")
                return self._broken
            self._pieces.append(view)
        return True

    def _receive_broken(self, fault: Fault, now: int, out: list[Action]) -> None:
        """Complete the receive at hand with LOC_PROT_ERR; the queue pair has to go to ERR."""
        assert self._receive is not None
        self.qp.last_error = fault.reason
        out.append(Complete(self.qp.recv_cqn, self._wc(self._receive, WcStatus.IBV_WC_LOC_PROT_ERR, now)))
        self._receive = None

    def land(self, frame: Frame) -> None:
        """Store what was received aside, or have `finish` report that it cannot be done."""
        raise NotImplementedError

    def revoke(self, memory: object) -> bool:
        """The region with this memory is deregistered: a receive at hand that names it is broken."""
        if self._receive is None or not any(piece.obj is memory for piece in self._pieces):
            return False
        self._pieces = []
        self._broken = Fault(f"posted receive wr_id {self._receive.wr_id}: its memory was deregistered")
        return True

    @property
    def held_until_ns(self) -> int | None:
        """Nothing is ever held."""
        return None

    def release(self, now: int, out: list[Action]) -> bool:
        """Nothing is ever held."""
        return False

    def next_response(self, max_payload: int) -> Frame | None:
        """Nothing is ever answered."""
        return None

    def refuse_now(self, now: int, out: list[Action]) -> None:
        """Nothing is ever refused, only dropped."""

    def flush(self, now: int, out: list[Action]) -> None:
        """Complete every posted receive with WR_FLUSH_ERR."""
        wqe = self._receive if self._receive is not None else self.qp.rq.fetch()
        self.reset()
        while wqe is not None:
            out.append(Complete(self.qp.recv_cqn, self._wc(wqe, WcStatus.IBV_WC_WR_FLUSH_ERR, now)))
            wqe = self.qp.rq.fetch()

    def _wc(self, wqe: RecvWqe, status: WcStatus, now: int) -> WC:
        if status != WcStatus.IBV_WC_SUCCESS:
            return failed(wqe.wr_id, status, self.qp.qpn, now, wqe.index, True)
        return WC(
            wqe.wr_id, status, WcOpcode.IBV_WC_RECV, qp_num=self.qp.qpn, timestamp_ns=now, wqe_index=wqe.index,
            is_receive=True,
        )  # fmt: skip
