"""docs/abi.md says what the code does: offsets, sizes and messages are read off the page and compared."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from fauxrdma.abi import control_verbs, layout
from fauxrdma.abi.rings import CompletionRing, DoorbellRing, QueuePairRings
from fauxrdma.hca.port import PortCounters

PAGE = (Path(__file__).parents[2] / "docs" / "abi.md").read_text()


ANSWERS = {
    "AddressVector",
    "DropCounters",
    "Created",
    "DmData",
    "Done",
    "HcaList",
    "MrKeys",
    "MwKey",
    "Opened",
    "PortStatus",
    "QpCreated",
    "QpState",
    "SrqState",
    "VerbFailed",
    "AsyncEventNotice",
    "CmListening",
    "CmNotice",
    "CmParameters",
    "CmResolved",
}


def section(title: str) -> str:
    return PAGE.split(f"### {title}\n")[1].split("\n### ")[0]


def offset_of(title: str, words: str) -> int:
    (line,) = [line for line in section(title).splitlines() if words in line and line.startswith("| ")]
    return int(line.split("|")[1])


@pytest.mark.parametrize(
    ("title", "words", "word"),
    [
        ("Queue pair", "state (IBV_QPS_*)", layout.QP_STATE_WORD),
        ("Queue pair", "send requests posted", layout.QP_SQ_PRODUCER),
        ("Queue pair", "receive requests posted", layout.QP_RQ_PRODUCER),
        ("Queue pair", "send requests taken", layout.QP_SQ_CONSUMER),
        ("Queue pair", "receive requests taken", layout.QP_RQ_CONSUMER),
        ("Shared receive queue", "shared receives posted", layout.SRQ_PRODUCER),
        ("Shared receive queue", "shared receives taken", layout.SRQ_CONSUMER),
        ("Shared receive queue", "shared receives dropped", layout.SRQ_DROPPED),
        ("Completion queue", "completions added", layout.CQ_PRODUCER),
        ("Completion queue", "completions polled", layout.CQ_CONSUMER),
        ("Completion queue", "armed:", layout.CQ_ARMED),
        ("Doorbell", "doorbells rung", layout.DOORBELL_PRODUCER),
        ("Doorbell", "doorbells seen", layout.DOORBELL_CONSUMER),
        ("Doorbell", "overflow:", layout.DOORBELL_OVERFLOW),
    ],
)
def test_index_words(title: str, words: str, word: int) -> None:
    assert offset_of(title, words) == 8 * word


def test_where_slots_begin_and_their_sizes() -> None:
    assert offset_of("Queue pair", "send slots, then receive slots") == layout.QP_HEADER_BYTES
    assert offset_of("Completion queue", "64-byte entries") == layout.CQ_HEADER_BYTES
    assert layout.CQE_BYTES == 64
    assert offset_of("Doorbell", "4096 u32") == layout.DOORBELL_HEADER_BYTES
    assert layout.DOORBELL_ENTRIES == 4096
    assert layout.SEND_WQE_BYTES == 64
    assert layout.RECV_WQE_BYTES == 16
    qp = layout.QpLayout(4, 2, 3, 2, 100)
    assert (qp.sq_stride, qp.rq_stride, qp.rq_offset, qp.total_bytes) == (192, 64, 320 + 4 * 192, 4096)
    assert f"0x{layout.MAGIC:X}" in PAGE


def test_fields_of_a_completion_entry() -> None:
    rows = re.findall(r"^\| (\d+) \| (u\d+) ", section("Completion queue").split("| entry | |")[1], re.M)
    assert len(rows) == 14
    formats = {"u16": 2, "u32": 4, "u64": 8}
    at = 0
    for offset, kind in rows:
        assert int(offset) == at
        at += formats[kind]
    assert at == layout.CQE_BYTES


def test_the_address_vector_is_listed_with_its_fields() -> None:
    (line,) = re.findall(r"^An address vector \(`AddressVector`\) is a map of ([^;]*);", PAGE, re.M)
    listed = [field.strip() for field in line.replace(" and ", ", ").split(",")]
    assert listed == [f.name for f in dataclasses.fields(control_verbs.AddressVector)]


def test_every_drop_counter_is_listed() -> None:
    assert [f.name for f in dataclasses.fields(PortCounters) if f"`{f.name}`" not in PAGE] == []


def test_every_request_is_listed_with_its_fields() -> None:
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\| `(\w+)`", PAGE, re.M)
    requests = {
        name for name, cls in vars(control_verbs).items() if isinstance(cls, type) and name in control_verbs.__all__
    } - ANSWERS
    assert {name for name, _, _ in rows} == requests
    for name, fields, _ in rows:
        plain = re.sub(r"\([^)]*\)", "", fields)
        listed = [field.strip() for field in plain.split(",") if field.strip()]
        assert listed == [f.name for f in dataclasses.fields(getattr(control_verbs, name))], name


def test_rings_keep_order_over_many_laps_and_refuse_to_overflow() -> None:
    qp_layout = layout.QpLayout(3, 2, 2, 1, 32)
    rings = QueuePairRings(memoryview(bytearray(qp_layout.total_bytes)), qp_layout)
    for i in range(20):
        rings.put_send(i, i, 0, 0, 1 << 40, 5, 6, [(i, 2, 3), (4, 5, 6)], None)
        assert rings.take_send() is None
        rings.publish_sends(i + 1)
        assert rings.pending_sends() == 1
        assert rings.take_send() == (i, (i, 0, 0, 1 << 40, 5, 6, ((i, 2, 3), (4, 5, 6)), None, 0, 0, 0))
        rings.put_send(0, 0, 0, 8, 0, 0, 0, [], b"inline!")
        rings.put_recv(i, i, [(i, 7, 8)])
        rings.publish_recvs(i + 1)
        assert rings.take_recv() == (i, (i, ((i, 7, 8),)))
    cq = CompletionRing(memoryview(bytearray(layout.cq_bytes(4))), 4)
    for lap in range(5):
        assert [cq.push((lap * 10 + i, *[0] * 13)) for i in range(5)] == [True] * 4 + [False]
        assert [fields[0] for fields in cq.take(9)] == [lap * 10 + i for i in range(4)]
    assert cq.take(1) == []


def test_what_an_application_writes_is_kept_inside_its_slot() -> None:
    qp_layout = layout.QpLayout(1, 1, 1, 1, 0)
    data = memoryview(bytearray(qp_layout.total_bytes))
    rings = QueuePairRings(data, qp_layout)
    layout.SEND_WQE.pack_into(data, qp_layout.sq_offset, 1, 0, 0, 0, 0, 0, 1 << 31, 0, 0, 0, 0, 0)  # claims 2^31 SGEs
    rings.publish_sends(1)
    taken = rings.take_send()
    assert taken is not None
    assert len(taken[1][6]) == (qp_layout.sq_stride - 64) // 16
    layout.SEND_WQE.pack_into(
        data, qp_layout.sq_offset, 1, 0, 8, 0, 0, 0, 0, 1 << 31, 0, 0, 0, 0
    )  # claims 2^31 inline bytes
    rings.publish_sends(2)
    taken = rings.take_send()
    assert taken is not None
    assert len(taken[1][7] or b"") == qp_layout.sq_stride - 64


def test_doorbells_are_merged_and_an_overflow_is_told() -> None:
    bells = DoorbellRing(memoryview(bytearray(layout.doorbell_bytes())))
    for qpn in (5, 6, 5, 5):
        bells.ring(qpn)
    assert bells.drain() == [5, 6]
    assert bells.drain() == []
    for _ in range(layout.DOORBELL_ENTRIES + 1):
        bells.ring(7)
    assert bells.drain() is None
    assert bells.drain() == []


def test_an_index_that_claims_more_than_the_ring_holds_is_not_followed() -> None:
    qp_layout = layout.QpLayout(4, 4, 1, 1, 0)
    rings = QueuePairRings(memoryview(bytearray(qp_layout.total_bytes)), qp_layout)
    rings.publish_sends(1 << 60)
    rings.publish_recvs(5)
    assert rings.take_send() is None
    assert rings.take_recv() is None
    assert rings.pending_sends() == rings.pending_recvs() == 0
