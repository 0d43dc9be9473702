"""The 40 bytes in front of a datagram: InfiniBand's GRH, and RoCE v2's IP headers in its place."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.errors import RemoteProtocolError
from fauxrdma.ib.enums import GidType
from fauxrdma.wire.grh import GRH_BYTES, Grh, gid_bytes, gid_text, is_multicast_gid

IB, V1, V2 = GidType.IBV_GID_TYPE_IB, GidType.IBV_GID_TYPE_ROCE_V1, GidType.IBV_GID_TYPE_ROCE_V2
A, B = gid_bytes("fe80::1:2"), gid_bytes("fe80::3:4")
A4, B4 = gid_bytes("::ffff:10.0.0.1"), gid_bytes("::ffff:10.0.0.2")


def test_infiniband_has_the_grh_of_ibta_8_3() -> None:
    data = Grh(A, B, 24 + 100, 7, 0xAB, 0x12345, IB).to_bytes()
    assert data[:8] == bytes.fromhex("6ab12345007c1b07")  # version 6, class, flow; length; next header; hops
    assert data[8:] == A + B
    assert Grh(A, B, gid_type=V1).to_bytes()[6] == 0x1B


def test_roce_v2_over_ipv6_is_an_ipv6_header_with_udp_inside() -> None:
    data = Grh(A, B, 32, 64, gid_type=V2).to_bytes()
    assert len(data) == GRH_BYTES
    assert data[:8] == bytes.fromhex("6000000000201140")


def test_roce_v2_over_ipv4_is_20_zero_bytes_and_an_ipv4_header() -> None:
    data = Grh(A4, B4, 32, 64, 0x68, gid_type=V2).to_bytes()
    assert data[:20] == bytes(20)
    header = data[20:]
    assert header[:10] == bytes.fromhex("45680034000040004011")
    assert header[12:] == ipaddress.IPv4Address("10.0.0.1").packed + ipaddress.IPv4Address("10.0.0.2").packed
    # The checksum, by hand: the one's complement sum of all words of a correct header is ffff.
    total = sum(int.from_bytes(header[i : i + 2], "big") for i in range(0, 20, 2))
    assert total % 0xFFFF == 0
    assert total > 0


def test_mixed_addresses_are_ipv6() -> None:
    assert not Grh(A4, B, gid_type=V2).is_ipv4
    assert not Grh(A4, B4, gid_type=IB).is_ipv4


@given(
    st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16), st.integers(0, 4200), st.integers(0, 255),
    st.integers(0, 255), st.integers(0, 0xFFFFF), st.sampled_from([IB, V2]), st.booleans(),
)  # fmt: skip
def test_what_is_written_is_read(
    sgid: bytes, dgid: bytes, nbytes: int, hops: int, traffic: int, flow: int, kind: GidType, v4: bool
) -> None:
    if v4:
        sgid, dgid = A4[:12] + sgid[12:], A4[:12] + dgid[12:]
        flow = flow if kind == IB else 0  # IPv4 has no flow label
    grh = Grh(sgid, dgid, nbytes, hops, traffic, flow, kind)
    assert len(grh.to_bytes()) == GRH_BYTES
    assert Grh.from_bytes(grh.to_bytes() + b"payload") == grh


def test_what_is_no_header_is_refused() -> None:
    for junk in (bytes(40), b"\xff" * 40):
        with pytest.raises(RemoteProtocolError, match="neither a GRH nor an IP header"):
            Grh.from_bytes(junk)
    with pytest.raises(RemoteProtocolError, match="has 40 bytes, there are 39"):
        Grh.from_bytes(bytes(39))
    broken = bytearray(Grh(A4, B4, 32, gid_type=V2).to_bytes())
    broken[28] ^= 1  # the time to live, which the checksum covers
    with pytest.raises(RemoteProtocolError):
        Grh.from_bytes(broken)


def test_lengths() -> None:
    assert Grh.payload_bytes_of(0, False, IB) == 24
    assert Grh.payload_bytes_of(1, True, IB) == 32
    assert Grh.payload_bytes_of(4, False, V2) == 36


def test_gids_as_text() -> None:
    assert gid_text(gid_bytes("fe80::1")) == "fe80:0000:0000:0000:0000:0000:0000:0001"
    assert is_multicast_gid(gid_bytes("ff12::1"))
    assert not is_multicast_gid(A)
    with pytest.raises(ValueError, match="nonsense"):
        gid_bytes("nonsense")
