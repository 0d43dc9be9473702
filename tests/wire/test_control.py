"""Control messages: typed both ways, limits, and what is malformed."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.abi import control_verbs
from fauxrdma.errors import LocalProtocolError, RemoteProtocolError
from fauxrdma.wire import fabric_messages, fault_messages
from fauxrdma.wire.control import MAX_CONTROL_BYTES, Message, MessageBuffer, decode, encode, message, pack_frame
from fauxrdma.wire.fabric_messages import (
    Directory,
    DirectoryEntry,
    FlowStop,
    HcaInfo,
    LandedCounter,
    NodeHello,
    PathAnswer,
    PortChange,
    RateGrant,
    SprayCounter,
)
from fauxrdma.wire.fault_messages import FaultRecord, Hazard, LinkErrors

MESSAGES = [
    value
    for module in (fabric_messages, fault_messages, control_verbs)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, Message) and value is not Message
]


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_every_message_survives_the_wire(cls: Any, data: st.DataObject) -> None:
    hints = {field.name: field.type for field in dataclasses.fields(cls)}
    values = {name: data.draw(_strategy(str(hint))) for name, hint in hints.items()}
    sent = cls(**values)
    assert decode(encode(sent)) == sent


def _strategy(hint: str) -> st.SearchStrategy[Any]:
    entry = DirectoryEntry(1, "h", 2, 0, "hca1")
    known = {
        "int": st.integers(-(2**63), 2**64 - 1),
        "str": st.text(max_size=20),
        "float": st.floats(allow_nan=False),
        "bool": st.booleans(),
        "int | None": st.none() | st.integers(0, 9),
        "list[int]": st.lists(st.integers(0, 99), max_size=4),
        "list[int] | None": st.none() | st.lists(st.integers(0, 99), max_size=4),
        "list[str] | None": st.none() | st.lists(st.text(max_size=5), max_size=4),
        "list[str]": st.lists(st.text(max_size=5), max_size=4),
        "dict[int, int]": st.dictionaries(st.integers(0, 99), st.integers(0, 99), max_size=4),
        "dict[str, int]": st.dictionaries(st.text(max_size=5), st.integers(0, 99), max_size=4),
        "dict[str, int | bool | None]": st.dictionaries(
            st.text(max_size=5), st.none() | st.booleans() | st.integers(0, 99), max_size=4
        ),
        "list[LandedCounter]": st.just([LandedCounter(1, 0, 2)]),
        "list[DirectoryEntry]": st.just([entry]),
        "list[HcaInfo]": st.just([HcaInfo("hca1", 1, 1, 2, "fe80::", 3, 4096, [], "leaf1", 5)]),
        "AddressVector": st.just(control_verbs.AddressVector(2, 1, 3, "fe80::1", True, 0, 4, 5, 6, 0, 0)),
        "CmParameters": st.just(control_verbs.CmParameters(1, 2, 3, 4, 5, 1, 7, 6, 0, 5, b"private")),
        "HcaInfo": st.just(HcaInfo("hca1", 1, 1, 2, "fe80::", 3, 4096, [0, 1], "leaf1", 5)),
        "list[PairCounter]": st.just([]),
        "list[SprayCounter]": st.just([SprayCounter(1, 2, 3, [4, 0])]),
        "list[LinkReport]": st.just([]),
        "list[PathAnswer]": st.just([PathAnswer(1, 2, True, 1, ["a->b"], 3, 4, "a->b")]),
        "list[PortChange]": st.just([PortChange(1, 4)]),
        "bytes": st.binary(max_size=100),
        "list[PairReport]": st.just([]),
        "list[list[str]]": st.just([["n0"], ["n1.hca1", "n2"]]),
        "list[FaultRecord]": st.just([FaultRecord(1, "link-down", "a->b", "link-down a->b", "over", 5, 9)]),
        "list[Hazard]": st.just([Hazard("a->b", 0.5, 1e-9)]),
        "list[LinkErrors]": st.just([LinkErrors("a->b", 1, 0, 2)]),
    }
    return known[hint]


def test_a_stream_is_cut_into_messages_at_any_byte() -> None:
    stream = pack_frame(FlowStop(1)) + pack_frame(RateGrant({1: 2})) + pack_frame(Directory([]))
    buffer = MessageBuffer()
    got = []
    for i in range(len(stream)):
        buffer.feed(stream[i : i + 1])
        got += list(buffer)
    assert got == [FlowStop(1), RateGrant({1: 2}), Directory([])]


def test_an_endless_message_is_refused_before_it_is_read() -> None:
    buffer = MessageBuffer()
    buffer.feed(struct.pack("<I", MAX_CONTROL_BYTES + 1))
    with pytest.raises(RemoteProtocolError, match="over the limit"):
        list(buffer)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"\xc1", "not valid msgpack"),
        (msgpack.packb([1]), "must be a map"),
        (msgpack.packb({"flow": 1}), "under 't'"),
        (msgpack.packb({"t": "Nonsense"}), "unknown control message 'Nonsense'"),
        (msgpack.packb({"t": "FlowStop"}), "incomplete"),
        (msgpack.packb({"t": "FlowStop", "flow": "1"}), "field 'flow' cannot be '1'"),
        (msgpack.packb({"t": "FlowStop", "flow": True}), "cannot be True"),
        (msgpack.packb({"t": "FlowStop", "flow": 1, "x": 2}), "no field 'x'"),
        (msgpack.packb({"t": "Directory", "entries": [{"t": "FlowStop", "flow": 1}]}), "field 'entries'"),
    ],
)
def test_what_is_malformed_is_named(raw: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        decode(raw)


def test_too_long_to_send_is_the_senders_error() -> None:
    with pytest.raises(LocalProtocolError, match="NodeHello"):
        encode(NodeHello(1, 0, "x" * (MAX_CONTROL_BYTES + 1), 0, "", 0))


def test_a_name_is_registered_once() -> None:
    with pytest.raises(LocalProtocolError, match="FlowStop"):

        @message
        class FlowStop(Message):
            pass
