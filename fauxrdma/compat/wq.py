"""Receive work queues of Ethernet adapters (pyverbs.wq): not offered. Attribute classes can be made."""

from __future__ import annotations

from typing import Any

from fauxrdma.compat.base import PyverbsCM, PyverbsObject
from fauxrdma.compat.handles import not_offered
from fauxrdma.compat.pyverbs_error import PyverbsUserError

__all__ = ["WQ", "RwqIndTable", "RwqIndTableInitAttr", "RxHashConf", "WQAttr", "WQInitAttr"]


class WQInitAttr(PyverbsObject):
    """What a work queue would be made of."""

    def __init__(
        self,
        wq_context: Any = None,
        wq_pd: Any = None,
        wq_cq: Any = None,
        wq_type: int = 0,
        max_wr: int = 100,
        max_sge: int = 1,
        comp_mask: int = 0,
        create_flags: int = 0,
    ) -> None:
        self.wq_context = wq_context
        self.pd = wq_pd
        self.cq = wq_cq
        self.wq_type = wq_type
        self.max_wr = max_wr
        self.max_sge = max_sge
        self.comp_mask = comp_mask
        self.create_flags = create_flags


class WQAttr(PyverbsObject):
    """What a work queue would be told."""

    def __init__(
        self, attr_mask: int = 0, wq_state: int = 0, curr_wq_state: int = 0, flags: int = 0, flags_mask: int = 0
    ) -> None:
        self.attr_mask = attr_mask
        self.wq_state = wq_state
        self.curr_wq_state = curr_wq_state
        self.flags = flags
        self.flags_mask = flags_mask


class WQ(PyverbsCM):
    """PyverbsRDMAError(EOPNOTSUPP)."""

    def __init__(self, ctx: Any, attr: WQInitAttr) -> None:
        not_offered("Failed to create WQ", "receive work queues")


class RwqIndTableInitAttr(PyverbsObject):
    """What an indirection table would be made of."""

    def __init__(self, log_ind_tbl_size: int = 5, wqs_list: list[Any] | None = None, comp_mask: int = 0) -> None:
        if log_ind_tbl_size <= 0:
            raise PyverbsUserError("Invalid indirection table size. Log size must be > 0")
        self.log_ind_tbl_size = log_ind_tbl_size
        self.wqs_list = wqs_list or []
        self.comp_mask = comp_mask


class RwqIndTable(PyverbsCM):
    """PyverbsRDMAError(EOPNOTSUPP)."""

    def __init__(self, ctx: Any, attr: RwqIndTableInitAttr) -> None:
        not_offered("Failed to create RwqIndTable", "receive hashing")


class RxHashConf(PyverbsObject):
    """How receives would be hashed."""

    def __init__(
        self,
        rx_hash_function: int = 0,
        rx_hash_key_len: int = 0,
        rx_hash_key: list[int] | None = None,
        rx_hash_fields_mask: int = 0,
    ) -> None:
        if rx_hash_key and rx_hash_key_len != len(rx_hash_key):
            raise PyverbsUserError("Length of rx_hash_key not equal to rx_hash_key_len")
        self.rx_hash_function = rx_hash_function
        self.rx_hash_key_len = rx_hash_key_len
        self.rx_hash_key = rx_hash_key
        self.rx_hash_fields_mask = rx_hash_fields_mask
