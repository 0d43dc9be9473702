"""Version negotiation between daemons."""

from __future__ import annotations

import struct

import pytest

from fauxrdma.errors import RemoteProtocolError
from fauxrdma.wire.link_hello import (
    LINK_VERSION,
    LinkHello,
    check_answer,
    choose_version,
    decode_hello,
    encode_answer,
    encode_hello,
)


def test_equal_versions_agree() -> None:
    hello = decode_hello(encode_hello(3, 77))
    assert hello == LinkHello(1, LINK_VERSION, 3, 77)
    version, reason = choose_version(hello, 77)
    assert check_answer(encode_answer(version, reason)) == LINK_VERSION


def test_a_newer_peer_that_still_speaks_ours_gets_ours() -> None:
    assert choose_version(LinkHello(1, 99, 0, 0), 0) == (LINK_VERSION, 0)


def test_a_peer_with_only_newer_versions_is_told_why() -> None:
    answer = encode_answer(*choose_version(LinkHello(LINK_VERSION + 1, 99, 0, 0), 0))
    with pytest.raises(RemoteProtocolError, match="no common version"):
        check_answer(answer)


def test_a_peer_of_another_fabric_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="another fabric"):
        check_answer(encode_answer(*choose_version(LinkHello(1, 1, 0, 5), 6)))


def test_strangers_are_named() -> None:
    with pytest.raises(RemoteProtocolError, match="GET / HT"):
        decode_hello(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    with pytest.raises(RemoteProtocolError, match="not a fauxrdma HCA daemon"):
        check_answer(struct.pack("!8sHHI", b"HTTP/1.1", 1, 0, 0))
