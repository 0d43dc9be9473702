"""Strings: libibverbs' own, read from its functions (libibverbs 44), and pyverbs'."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable

import pytest

from fauxrdma.ib import enums, strings

# What the functions of libibverbs 44 return, one entry for each value from `first` on.
LIBIBVERBS: dict[str, tuple[Callable[[int], str], int, str]] = {
    "ibv_wc_status_str": (
        strings.wc_status_str,
        0,
        "success|local length error|local QP operation error|local EE context operation error|local protection error|"
        "Work Request Flushed Error|memory management operation error|bad response error|local access error|"
        "remote invalid request error|remote access error|remote operation error|transport retry counter exceeded|"
        "RNR retry counter exceeded|local RDD violation error|remote invalid RD request|aborted error|"
        "invalid EE context number|invalid EE context state|fatal error|response timeout error|general error",
    ),
    "ibv_event_type_str": (
        strings.event_type_str,
        0,
        "CQ error|local work queue catastrophic error|invalid request local work queue error|"
        "local access violation work queue error|communication established|send queue drained|path migrated|"
        "path migration request error|local catastrophic error|port active|port error|LID change|P_Key change|"
        "SM change|SRQ catastrophic error|SRQ limit reached|last WQE reached|client reregistration|GID table change",
    ),
    "ibv_port_state_str": (
        strings.port_state_str,
        0,
        "no state change (NOP)|down|init|armed|active|active defer|unknown",
    ),
    "ibv_node_type_str": (
        strings.node_type_str,
        -1,
        "unknown|unknown|InfiniBand channel adapter|InfiniBand switch|InfiniBand router|iWARP NIC",
    ),
}


@pytest.mark.parametrize("name", LIBIBVERBS)
def test_they_are_libibverbs_own(name: str) -> None:
    ours, first, recorded = LIBIBVERBS[name]
    expected = recorded.split("|")
    assert [ours(first + i) for i in range(len(expected))] == expected
    library = ctypes.util.find_library("ibverbs")
    if library is not None:  # where it is installed, its word counts
        theirs = getattr(ctypes.CDLL(library), name)
        theirs.restype = ctypes.c_char_p
        assert [theirs(first + i).decode() for i in range(len(expected))] == expected


@pytest.mark.parametrize(
    ("enum", "function"),
    [
        (enums.WcStatus, strings.wc_status_str),
        (enums.WcStatus, strings.cqe_status_to_str),
        (enums.WcOpcode, strings.cqe_opcode_to_str),
        (enums.WcFlags, strings.cqe_flags_to_str),
        (enums.CreateCqWcFlags, strings.create_wc_flags_to_str),
        (enums.AsyncEventType, strings.event_type_str),
        (enums.PortState, strings.port_state_str),
        (enums.PortState, strings.port_state_to_str),
        (enums.QpState, strings.qp_state_to_str),
        (enums.QpType, strings.qp_type_to_str),
        (enums.AccessFlags, strings.access_flags_to_str),
        (enums.SendFlags, strings.send_flags_to_str),
        (enums.WrOpcode, strings.wr_opcode_to_str),
        (enums.Mtu, strings.mtu_to_str),
        (enums.LinkLayer, strings.link_layer_to_str),
        (enums.GidType, strings.gid_type_to_str),
        (enums.AtomicCap, strings.atomic_cap_to_str),
        (enums.DeviceCapFlags, strings.device_cap_flags_to_str),
        (enums.MwType, strings.mw_type_to_str),
        (enums.MigState, strings.mig_state_to_str),
        (enums.SrqType, strings.srq_type_to_str),
    ],
)
def test_every_member_has_a_name_of_its_own(enum: type, function: Callable[[int], str]) -> None:
    names = [function(int(member)) for member in enum]  # type: ignore[attr-defined]
    assert len(set(names)) == len(names)
    assert all(names)
    if not issubclass(enum, enums.IntFlag):
        assert function(99).lower().startswith(("unknown", "invalid"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (strings.qp_state_to_str(3), "RTS"),
        (strings.qp_type_to_str(4), "UD"),
        (strings.cqe_status_to_str(10), "remote access error"),
        (strings.cqe_status_to_str(11), "remote op error"),
        (strings.cqe_opcode_to_str(128), "Receive"),
        (strings.cqe_flags_to_str(1 | 2), "GRH With immediate"),
        (strings.access_flags_to_str(1 | 4), "LOCAL_WRITE REMOTE_READ"),
        (strings.access_flags_to_str(0), ""),
        (strings.mtu_to_str(3), "1024 (3)"),
        (strings.port_state_to_str(4), "Active (4)"),
        (strings.phys_state_to_str(5), "Link up (5)"),
        (strings.phys_state_to_str(0), "Invalid physical state"),
        (strings.width_to_str(2), "4X (2)"),
        (strings.width_to_str(3), "Invalid width"),
        (strings.speed_to_str(64), "50.0 Gbps (64)"),
        (strings.speed_to_str(256), "200.0 Gbps (256)"),
        (strings.speed_to_str(0), "Invalid speed"),
        (strings.link_layer_to_str(2), "Ethernet"),
        (strings.gid_type_to_str(2), "RoCE v2"),
        (strings.atomic_cap_to_str(1), "ATOMIC_HCA"),
        (strings.guid_to_str(0x0002C90300000001), "0002:c903:0000:0001"),
    ],
)
def test_wording(text: str, expected: str) -> None:
    assert text == expected
