"""The send-queue operations that send nothing: LOCAL_INV and BIND_MW (IBTA vol. 1, 10.6.7)."""

from __future__ import annotations

from fauxrdma.hca.queue_pair import QueuePair
from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import WcStatus, WrOpcode
from fauxrdma.memory.regions import KeyTable

__all__ = ["execute_local"]

_BIND_MW = int(WrOpcode.IBV_WR_BIND_MW)


def execute_local(wqe: SendWqe, qp: QueuePair, keys: KeyTable) -> WcStatus | None:
    """Execute one; what is refused changes nothing and gives MW_BIND_ERR, with the reason in `last_error`.

    The operands are where the ABI's send request has them (abi/layout.py).
    """
    if wqe.opcode == _BIND_MW:
        region = keys.by_lkey(wqe.imm)
        fault = keys.windows.bind(
            wqe.handle, qp.pd, qp.qpn, wqe.rkey, region, wqe.remote_addr, wqe.compare_add, wqe.swap
        )
        name = "BIND_MW"
    else:
        fault = keys.windows.check_invalidate(qp.pd, qp.qpn, wqe.rkey)
        if fault is None:
            keys.windows.invalidate(wqe.rkey)
        name = "LOCAL_INV"
    if fault is None:
        return None
    qp.last_error = f"{name} wr_id {wqe.wr_id}: {fault.reason}"
    return WcStatus.IBV_WC_MW_BIND_ERR
