"""What happens in virtual time, as lines of JSON: what was posted, what left and reached an HCA, what completed.

    {"t": 0, "event": "posted", "lid": 1, "qp": 7654321, "sends": 1}
    {"t": 655, "event": "sent", "lid": 1, "to": 2, "qp": 1234567, "opcode": "RC_RDMA_WRITE_ONLY", "bytes": 16384}
    {"t": 2175, "event": "arrived", "lid": 2, "from": 1, "qp": 1234567, "opcode": "RC_RDMA_WRITE_ONLY", "bytes": 16384}
    {"t": 3695, "event": "completed", "lid": 1, "qp": 7654321, "wr_id": 5, "opcode": 1, "status": 0, "bytes": 0}

`t` is fabric time in ns: of a doorbell, of the last bit's leaving, of the arrival as a whole, of the completion. `lid`
is the HCA where it happened (HCAs are numbered from 1, node after node); `qp` is its own queue pair, but of `sent` and
`arrived` the one that the frame is for. `sends` counts the requests in the send queue that the HCA has not taken yet;
`opcode` and `status` of a completion are ibv_wc_opcode and ibv_wc_status. Packet sequence numbers are left out: an
application chooses where they begin.

Lines of one HCA are in the order in which things happened; those of several are put together by time, then by LID.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from fauxrdma.ib.enums import BthOpcode, WcStatus
from fauxrdma.ib.work import WC
from fauxrdma.runtime.emulated_hca import QueuePairQueues
from fauxrdma.wire.headers import Frame

__all__ = ["EventTrace", "in_order"]


class EventTrace:
    """Writes a line for each event, by `write(line)`; a line ends with a newline."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def posted(self, now_ns: int, lid: int, qpn: int, queues: QueuePairQueues | None) -> None:
        """A doorbell was rung."""
        sends = queues.pending_sends() if queues is not None else 0
        self._line(t=now_ns, event="posted", lid=lid, qp=qpn, sends=sends)

    def sent(self, now_ns: int, frame: Frame) -> None:
        """A frame has left its HCA."""
        self._line(t=now_ns, event="sent", lid=frame.slid, to=frame.dlid, **_contents(frame))

    def arrived(self, now_ns: int, frame: Frame) -> None:
        """A frame has reached the HCA it was for."""
        self._line(t=now_ns, event="arrived", lid=frame.dlid, **{"from": frame.slid}, **_contents(frame))

    def completed(self, now_ns: int, lid: int, wc: WC) -> None:
        """A work request is done. After an error its operation and size mean nothing, and are 0."""
        good = wc.status == WcStatus.IBV_WC_SUCCESS
        self._line(
            t=now_ns, event="completed", lid=lid, qp=wc.qp_num, wr_id=wc.wr_id, opcode=int(wc.opcode) if good else 0,
            status=int(wc.status), bytes=wc.byte_len if good else 0,
        )  # fmt: skip

    def _line(self, **fields: int | str) -> None:
        self._write(json.dumps(fields) + "\n")


def _contents(frame: Frame) -> dict[str, int | str]:
    return {"qp": frame.dest_qpn, "opcode": BthOpcode(frame.opcode).name, "bytes": frame.nbytes}


def in_order(lines: Iterable[str]) -> list[str]:
    """Lines of several HCAs, those of each in order, put together by time, then by LID."""

    def place(line: str) -> tuple[int, int]:
        event = json.loads(line)
        return event["t"], event["lid"]

    return sorted(lines, key=place)
