"""Frames: the bytes of each header against hand-made ones, round trips, refusals."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.errors import RemoteProtocolError
from fauxrdma.ib.enums import BthOpcode
from fauxrdma.wire.headers import (
    FRAME_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    Frame,
    decode_header,
    encode_header,
    frame_lengths,
    header_bytes,
    packets_in,
    psn_add,
    psn_diff,
)

OPCODES = [o for o in BthOpcode if o < BthOpcode.RC_ATOMIC_ACKNOWLEDGE]
u16, u24, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 24, 32, 64))


def test_bth_and_reth_are_ibta_bytes() -> None:
    frame = Frame(
        BthOpcode.RC_RDMA_WRITE_ONLY, 1, 2, 0x123456, 0xABCDEF, ack_req=True, va=0x0102030405060708, rkey=0x11223344,
        dma_len=9, nbytes=9,
    )  # fmt: skip
    wire = encode_header(frame)[FRAME_HEADER_BYTES:]
    assert wire[:12] == bytes.fromhex("0a30ffff0012345680abcdef")  # pad count 3, default P_Key, AckReq
    assert wire[12:] == bytes.fromhex("01020304050607081122334400000009")


def test_aeth_and_immediate_are_ibta_bytes() -> None:
    ack = encode_header(Frame(BthOpcode.RC_ACKNOWLEDGE, 1, 2, 3, 4, syndrome=0x62, msn=0x010203))
    assert ack[-4:] == bytes.fromhex("62010203")
    send = encode_header(Frame(BthOpcode.RC_SEND_ONLY_WITH_IMMEDIATE, 1, 2, 3, 4, imm=0xDEADBEEF, solicited=True))
    assert send[-4:] == bytes.fromhex("deadbeef")
    assert send[FRAME_HEADER_BYTES + 1] & 0x80


@given(
    st.sampled_from(OPCODES), u16, u16, u24, u24, st.booleans(), st.booleans(), u64, u32, u32, st.integers(0, 255), u24,
    u32, st.integers(0, MAX_PAYLOAD_BYTES), u64, u32,
)  # fmt: skip
def test_every_field_survives_the_wire(
    opcode: int, slid: int, dlid: int, qpn: int, psn: int, ack: bool, solicited: bool, va: int, rkey: int, dma: int,
    syndrome: int, msn: int, imm: int, nbytes: int, arrival: int, duration: int,
) -> None:  # fmt: skip
    sent = Frame(
        opcode, slid, dlid, qpn, psn, ack, solicited, va, rkey, dma, syndrome, msn, imm, nbytes, (), arrival, duration
    )
    wire = encode_header(sent)
    assert frame_lengths(wire) == (len(wire), nbytes)
    assert len(wire) == header_bytes(opcode)
    got = decode_header(b"xyz" + wire, 3)
    has_reth = opcode in (0x06, 0x0A, 0x0B, 0x0C)
    has_aeth = opcode in (0x0D, 0x0F, 0x10, 0x11)
    has_imm = opcode in (0x03, 0x05, 0x09, 0x0B)
    expected = Frame(
        opcode, slid, dlid, qpn, psn, ack, solicited,
        va if has_reth else 0, rkey if has_reth else 0, dma if has_reth else 0,
        syndrome if has_aeth else 0, msn if has_aeth else 0, imm if has_imm else 0, nbytes, (), arrival, duration,
    )  # fmt: skip
    assert got == expected


def test_what_is_no_frame_is_refused() -> None:
    good = bytearray(encode_header(Frame(BthOpcode.RC_SEND_ONLY, 1, 2, 3, 4)))
    bad = bytearray(good)
    bad[0] = 0x47  # a 'G': somebody's HTTP request
    with pytest.raises(RemoteProtocolError, match="not a fauxrdma HCA"):
        frame_lengths(bad)
    bad = bytearray(good)
    struct.pack_into("!I", bad, 4, MAX_PAYLOAD_BYTES + 1)
    with pytest.raises(RemoteProtocolError, match="over the limit"):
        frame_lengths(bad)
    bad = bytearray(good)
    bad[1] = 255
    with pytest.raises(RemoteProtocolError, match="header bytes"):
        frame_lengths(bad)
    bad = bytearray(good)
    bad[FRAME_HEADER_BYTES] = 0x1F
    with pytest.raises(RemoteProtocolError, match="opcode 0x1f"):
        decode_header(bad)
    bad = bytearray(good)
    bad[FRAME_HEADER_BYTES] = BthOpcode.RC_RDMA_WRITE_ONLY  # needs a RETH this frame has no room for
    with pytest.raises(RemoteProtocolError, match="RC_RDMA_WRITE_ONLY"):
        decode_header(bad)


@given(u24, st.integers(0, 1 << 23))
def test_psn_arithmetic_wraps_at_24_bits(psn: int, ahead: int) -> None:
    later = psn_add(psn, ahead)
    assert 0 <= later < 1 << 24
    expected = ahead if ahead < 1 << 23 else -(1 << 23)
    assert psn_diff(later, psn) == expected
    assert psn_add(later, -ahead) == psn


def test_packets() -> None:
    assert [packets_in(n, 4096) for n in (0, 1, 4096, 4097, 1 << 20)] == [1, 1, 1, 2, 256]
