"""What an RC responder owes its requester: answers to READs and atomics, in the order of the requests.

A READ is read when its answer is cut, so a later unfenced WRITE may overtake it, and a deregistered region is not read
any more. To have programs notice, answers are also **held** now and then, until the requester's next frame is here or
`HELD_NS` have passed.

An atomic is executed when its request arrives and never again: its result is kept for a duplicate of the request,
together with those of the last `max_dest_rd_atomic` atomics (IBTA vol. 1, 9.4.5 and 9.7.4.4.2).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from fauxrdma.hca.queue_pair import QueuePair
from fauxrdma.ib.enums import AccessFlags, AethSyndrome, BthOpcode
from fauxrdma.memory.regions import Fault, KeyTable
from fauxrdma.memory.spans import load
from fauxrdma.wire.headers import Frame, packets_in, psn_add, psn_diff

__all__ = ["HELD_NS", "ResponseQueue"]

HELD_NS = 1000
"""How long the answer to a READ is held at most, in fabric time: what a slow PCIe read takes."""

_B = BthOpcode
_REMOTE_READ = int(AccessFlags.IBV_ACCESS_REMOTE_READ)
_ACK = int(AethSyndrome.ACK) | 0x1F


@dataclass(slots=True)
class _Job:
    """One request being answered. `psn` is that of its first response; `original` is None for a READ; `again`: it was
    answered before, and the requester, who may have that answer by now, does not count it."""

    psn: int
    original: int | None = None
    va: int = 0
    rkey: int = 0
    length: int = 0
    sent: int = 0
    again: bool = False


@dataclass(slots=True)
class ResponseQueue:
    """The responses of one queue pair. Its length is the number of requests not yet answered completely."""

    qp: QueuePair = field(repr=False, compare=False)
    keys: KeyTable = field(repr=False, compare=False)
    lid: int
    held_until_ns: int | None = None  # nothing is answered before
    _jobs: deque[_Job] = field(default_factory=deque)
    _replay: deque[tuple[int, int]] = field(default_factory=deque)  # PSN and original value of the last atomics

    def __len__(self) -> int:
        return len(self._jobs)

    def clear(self) -> None:
        """Owe nothing any more."""
        self._jobs.clear()
        self.held_until_ns = None

    def reset(self) -> None:
        """Owe nothing and remember nothing (RESET)."""
        self.clear()
        self._replay.clear()

    @property
    def outstanding(self) -> int:
        """Requests that count against max_dest_rd_atomic."""
        return sum(not job.again for job in self._jobs)

    def add_read(self, psn: int, va: int, rkey: int, length: int, again: bool = False) -> None:
        """Answer a READ of `length` bytes whose first response has this PSN; `again`: a duplicate."""
        self._jobs.append(_Job(psn, None, va, rkey, length, again=again))

    def add_atomic(self, psn: int, original: int) -> None:
        """Answer an atomic that has just been executed, and remember its result."""
        self._jobs.append(_Job(psn, original))
        self._replay.append((psn, original))
        while len(self._replay) > self.qp.attr.max_dest_rd_atomic:
            self._replay.popleft()

    def repeat_atomic(self, psn: int) -> None:
        """Answer a duplicate of an atomic from memory. One too old to be remembered gets no answer."""
        for known, original in self._replay:
            if known == psn:
                self._jobs.append(_Job(psn, original, again=True))

    @property
    def next_psn(self) -> int:
        """The PSN of the next response; something must be owed."""
        return psn_add(self._jobs[0].psn, self._jobs[0].sent // self.qp.mtu)

    def rewind(self, psn: int) -> None:
        """The requester went back to `psn`: answers to what lies behind it will be asked for again, too."""
        mtu = self.qp.mtu
        self._jobs = deque(
            job for job in self._jobs if psn_diff(psn_add(job.psn, packets_in(job.length, mtu)), psn) <= 0
        )

    def next_frame(self, max_payload: int, msn: int) -> Frame | Fault | None:
        """The next response, of at most `max_payload` bytes; a Fault when its memory is not there any more; None when
        nothing is owed. Raises Unreachable when it is registered and cannot be read all the same."""
        if not self._jobs or self.held_until_ns is not None:
            return None
        job = self._jobs[0]
        qp = self.qp
        frame = Frame(0, self.lid, qp.dlid, qp.dest_qpn, job.psn, syndrome=_ACK, msn=msn)
        if job.original is not None:
            frame.opcode, frame.original = int(_B.RC_ATOMIC_ACKNOWLEDGE), job.original
            self._jobs.popleft()
            return frame
        nbytes = min(max_payload, job.length - job.sent)
        ends = job.sent + nbytes == job.length
        if job.sent == 0:
            opcode = _B.RC_RDMA_READ_RESPONSE_ONLY if ends else _B.RC_RDMA_READ_RESPONSE_FIRST
        else:
            opcode = _B.RC_RDMA_READ_RESPONSE_LAST if ends else _B.RC_RDMA_READ_RESPONSE_MIDDLE
        frame.opcode = int(opcode)
        frame.psn = psn_add(job.psn, job.sent // qp.mtu)
        frame.mtu = qp.mtu_code
        frame.nbytes = nbytes
        if nbytes:
            view = self.keys.remote(qp.pd, job.va, job.length, job.rkey, _REMOTE_READ, qp.qpn)
            if isinstance(view, Fault):
                return view
            pieces = (view[job.sent : job.sent + nbytes],)
            frame.payload = load(pieces)
            frame.extents = self.keys.extents(pieces, nbytes)
        job.sent += nbytes
        if ends:
            self._jobs.popleft()
        return frame
