"""The communication manager's state machine: each message in each state, repeats, time, and two managers under loss."""

from __future__ import annotations

import errno
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manager_pair import SERVICE, Pair

from fauxrdma.cm import CmMessage, ConnectionManager, Kind, Reject, SendMad, State, Tell
from fauxrdma.cm.connection import MOST_TRIES, RESPONSE_NS
from fauxrdma.cm.messages import MAD_BYTES, PRIVATE_BYTES
from fauxrdma.cm.steps import TIMEWAIT_NS
from fauxrdma.errors import VerbsError

# ---- messages --------------------------------------------------------------------------------------------------------

_WIDTHS = {
    "local_id": 32, "remote_id": 32, "transaction": 64, "service_id": 64, "qpn": 24, "psn": 24, "qkey": 32,
    "qp_type": 2,
    "responder_resources": 8, "initiator_depth": 8, "flow_control": 1, "retry_count": 3, "rnr_retry_count": 3, "srq": 1,
    "path_mtu": 4, "timeout": 5, "answered": 2, "source_port": 16,
}  # fmt: skip
_CARRIED = {
    Kind.REQ: {"local_id", "transaction", "service_id", "qpn", "psn", "qkey", "qp_type", "responder_resources",
               "initiator_depth", "flow_control", "retry_count", "rnr_retry_count", "srq", "path_mtu", "timeout",
               "source_port", "private"},
    Kind.MRA: {"local_id", "remote_id", "transaction", "answered", "timeout", "private"},
    Kind.REJ: {"local_id", "remote_id", "transaction", "answered", "reason", "private"},
    Kind.REP: {"local_id", "remote_id", "transaction", "qkey", "qpn", "psn", "responder_resources", "initiator_depth",
               "flow_control", "rnr_retry_count", "srq", "private"},
    Kind.RTU: {"local_id", "remote_id", "transaction", "private"},
    Kind.DREQ: {"local_id", "remote_id", "transaction", "qpn", "private"},
    Kind.DREP: {"local_id", "remote_id", "transaction", "private"},
    Kind.SIDR_REQ: {"local_id", "transaction", "service_id", "source_port", "private"},
    Kind.SIDR_REP: {"remote_id", "transaction", "reason", "qpn", "qkey", "private"},
}  # fmt: skip


@pytest.mark.parametrize("kind", Kind, ids=lambda k: k.name)
@settings(max_examples=20)
@given(data=st.data())
def test_a_message_survives_the_wire(kind: Kind, data: st.DataObject) -> None:
    message = CmMessage(kind)
    for name in _CARRIED[kind]:
        if name == "private":
            message.private = data.draw(st.binary(max_size=PRIVATE_BYTES[kind]))
        elif name == "reason":
            message.reason = data.draw(st.integers(0, 255))
        else:
            setattr(message, name, data.draw(st.integers(0, (1 << _WIDTHS[name]) - 1)))
    mad = message.encode()
    assert len(mad) == MAD_BYTES
    got = CmMessage.decode(mad)
    assert got.private == message.private.ljust(PRIVATE_BYTES[kind], b"\0")
    got.private = message.private
    assert got == message


def test_private_data_has_the_room_that_rdma_cm_documents() -> None:
    assert (PRIVATE_BYTES[Kind.REQ], PRIVATE_BYTES[Kind.REP], PRIVATE_BYTES[Kind.REJ]) == (56, 196, 148)
    assert (PRIVATE_BYTES[Kind.SIDR_REQ], PRIVATE_BYTES[Kind.SIDR_REP]) == (180, 136)
    with pytest.raises(VerbsError) as caught:
        Pair().connect(private=bytes(57))
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("mad", [b"", bytes(255), bytes(256), b"\xff" * 256])
def test_what_is_no_message_is_dropped(mad: bytes) -> None:
    out: list[SendMad | Tell] = []
    ConnectionManager(random.Random(1)).receive(2, mad, 0, out)
    assert out == []


# ---- the way of a connection -----------------------------------------------------------------------------------------


def test_from_the_request_to_the_end() -> None:
    pair = Pair()
    mine, his = pair.established()
    assert pair.sent == [(1, Kind.REQ), (2, Kind.REP), (1, Kind.RTU)]
    request, response = pair.told[2][0].message, pair.told[1][0].message
    assert request is not None
    assert response is not None
    assert (request.qpn, request.psn, request.private[:5]) == (17, 99, b"hello")
    assert (response.qpn, response.psn, response.private[:7]) == (18, 77, b"welcome")
    pair.do(1, "disconnect", mine, pair.now)
    pair.run()
    assert pair.sent[3:] == [(1, Kind.DREQ), (2, Kind.DREP)]
    assert pair.whats(1) == ["response", "established", "disconnected", "timewait_exit"]
    assert pair.whats(2) == ["request", "established", "disconnected", "timewait_exit"]
    assert not pair.managers[1].connections
    assert not pair.managers[2].connections
    assert pair.state(2, his) is None


def test_a_rejection_carries_private_data() -> None:
    pair = Pair()
    pair.managers[2].listen(SERVICE, 1)
    pair.connect()
    pair.run(5000)
    pair.do(2, "reject", pair.requested(), b"not today", pair.now)
    pair.run()
    (tell,) = pair.told[1]
    assert tell.what == "rejected"
    assert tell.message is not None
    assert (tell.message.reason, tell.message.private[:9]) == (Reject.CONSUMER_DEFINED, b"not today")


def test_nobody_listens() -> None:
    pair = Pair()
    pair.connect()
    pair.run()
    (tell,) = pair.told[1]
    assert tell.what == "rejected"
    assert tell.message is not None
    assert tell.message.reason == Reject.INVALID_SERVICE_ID


@pytest.mark.parametrize("accept", [True, False])
def test_a_datagram_service(accept: bool) -> None:
    pair = Pair()
    pair.managers[2].listen(SERVICE, 1)
    pair.connect(Kind.SIDR_REQ)
    pair.run(5000)
    if accept:
        pair.do(2, "accept", pair.requested(), CmMessage(Kind.SIDR_REP, qpn=5, qkey=6, private=b"here"), pair.now)
    else:
        pair.do(2, "reject", pair.requested(), b"away", pair.now)
    pair.run()
    (tell,) = pair.told[1]
    assert tell.what == ("established" if accept else "rejected")
    assert tell.message is not None
    assert tell.message.private[:4] == (b"here" if accept else b"away")
    assert (tell.message.qpn, tell.message.qkey) == ((5, 6) if accept else (0, 0))


def test_both_part_at_once() -> None:
    pair = Pair()
    mine, his = pair.established()
    pair.do(1, "disconnect", mine, pair.now)
    pair.do(2, "disconnect", his, pair.now)
    pair.run()
    for lid in (1, 2):
        assert pair.whats(lid).count("disconnected") == 1


def test_a_slow_program_keeps_its_peer_waiting() -> None:
    """The request is repeated, the manager asks for time; the program hears of one request and may accept after all."""
    pair = Pair()
    pair.managers[2].listen(SERVICE, 1)
    mine = pair.connect()
    pair.run(100 * RESPONSE_NS)
    assert (2, Kind.MRA) in pair.sent
    assert pair.whats(2) == ["request"]
    pair.do(2, "accept", pair.requested(), CmMessage(Kind.REP, qpn=18), pair.now)
    pair.run(pair.now + 5000)
    pair.do(1, "establish", mine, pair.now)
    pair.run(pair.now + 5000)
    assert pair.whats(2)[-1] == "established"


def test_the_backlog() -> None:
    pair = Pair()
    pair.managers[2].listen(SERVICE, 2)
    for i in range(3):
        pair.connect(qpn=17 + i)
    pair.run(5000)
    assert pair.whats(2) == ["request"] * 2
    pair.do(2, "reject", pair.requested(), b"", pair.now)
    pair.run(RESPONSE_NS + 5000)
    assert pair.whats(2) == ["request"] * 3


# ---- a peer that is gone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["asked", "accepted", "answered", "parting"])
def test_a_peer_that_dies(step: str) -> None:
    """Whatever was under way, an error comes within the tries."""
    pair = Pair()
    most = (MOST_TRIES + 1) * RESPONSE_NS
    if step == "asked":
        pair.dead.add(2)
        pair.connect()
        lid, what = 1, "unreachable"
    elif step == "accepted":
        pair.managers[2].listen(SERVICE, 4)
        pair.connect()
        pair.run(5000)
        pair.dead.add(1)
        pair.do(2, "accept", pair.requested(), CmMessage(Kind.REP), pair.now)
        lid, what = 2, "unreachable"
    else:
        mine, _ = pair.established()
        pair.dead.add(2)
        pair.do(1, "disconnect", mine, pair.now)
        lid, what = 1, "disconnected"
    began = pair.now
    pair.run(began + most)
    assert pair.whats(lid)[-1] == what
    pair.run()
    assert not pair.managers[lid].connections


@pytest.mark.parametrize("step", ["asked", "requested", "accepted", "responded", "established"])
def test_a_program_that_lets_go(step: str) -> None:
    """Its peer hears: a rejection before it was established, a parting after; and nothing is left behind."""
    pair = Pair()
    if step == "established":
        mine, _ = pair.established()
        pair.do(1, "forget", mine, pair.now)
        other, what = 2, "disconnected"
    else:
        pair.managers[2].listen(SERVICE, 4)
        mine = pair.connect()
        pair.run(5000)
        if step == "requested":
            pair.do(2, "forget", pair.requested(), pair.now)
            other, what = 1, "rejected"
        elif step == "accepted":
            pair.do(2, "accept", pair.requested(), CmMessage(Kind.REP), pair.now)
            pair.do(2, "forget", pair.requested(), pair.now)
            pair.run(pair.now + 5000)
            other, what = 1, "disconnected"
        else:
            if step == "responded":
                pair.do(2, "accept", pair.requested(), CmMessage(Kind.REP), pair.now)
                pair.run(pair.now + 5000)
            pair.do(1, "forget", mine, pair.now)
            other, what = 2, "rejected"
    pair.run()
    assert what in pair.whats(other)
    assert not pair.managers[1].connections
    assert not pair.managers[2].connections


def test_nobody_hears_of_a_listener_that_is_gone() -> None:
    pair = Pair()
    number = pair.managers[2].listen(SERVICE, 4)
    with pytest.raises(VerbsError) as caught:
        pair.managers[2].listen(SERVICE, 4)
    assert caught.value.errno == errno.EADDRINUSE
    pair.connect()
    pair.run(5000)
    pair.do(2, "unlisten", number, pair.now)
    pair.run()
    assert pair.whats(1) == ["rejected"]
    pair.managers[2].listen(SERVICE, 4)


@pytest.mark.parametrize("call", ["accept", "reject", "establish", "disconnect"])
def test_what_is_not_legal_says_what_is(call: str) -> None:
    """A connection that has just been asked for can do none of these; one that does not exist neither."""
    pair = Pair()
    number = pair.connect()
    extra = {"accept": (CmMessage(Kind.REP),), "reject": (b"",)}.get(call, ())
    for which, words in ((number, "legal are"), (12345, "no such connection")):
        with pytest.raises(VerbsError) as caught:
            pair.do(1, call, which, *extra, pair.now)
        assert caught.value.errno == errno.EINVAL
        assert words in str(caught.value)


@pytest.mark.parametrize("state", State, ids=lambda s: s.name)
@pytest.mark.parametrize("kind", Kind, ids=lambda k: k.name)
def test_every_message_in_every_state_leads_to_a_legal_one(state: State, kind: Kind) -> None:
    pair = Pair()
    mine, his = pair.established()
    connection = pair.managers[1].connections[mine]
    connection.state = state
    out: list[SendMad | Tell] = []
    message = CmMessage(kind, local_id=his, remote_id=mine, service_id=SERVICE)
    pair.managers[1].receive(2, message.encode(), pair.now, out)
    left = pair.managers[1].connections.get(mine)
    assert left is None or left.state in State
    assert len(out) <= 2


# ---- two managers, whatever the wire does ----------------------------------------------------------------------------


@given(seed=st.integers(0, 1 << 32), loss=st.sampled_from([0.0, 0.2, 0.5]), parts=st.sampled_from([1, 2, 3]))
@settings(max_examples=100)
def test_under_loss_duplication_and_reordering(seed: int, loss: float, parts: int) -> None:
    """Each side hears of each step at most once and in order; both end, and nothing is left."""
    rng = random.Random(seed)

    def fate() -> list[int]:
        copies = 0 if rng.random() < loss else rng.choice((1, 1, 2))
        return [rng.randrange(1000, 2 * RESPONSE_NS) for _ in range(copies)]

    pair = Pair(seed, fate)
    pair.managers[2].listen(SERVICE, 4)
    mine = pair.connect()
    done: set[tuple[int, str]] = set()
    end = TIMEWAIT_NS * 6
    while pair.now < end and (pair.wire or any(m.next_deadline_ns() for m in pair.managers.values())):
        pair.run(pair.now + RESPONSE_NS // 3)
        if "request" in pair.whats(2) and (2, "accept") not in done and pair.state(2, pair.requested()):
            done.add((2, "accept"))
            pair.do(2, "accept", pair.requested(), CmMessage(Kind.REP, qpn=18), pair.now)
        if pair.state(1, mine) == State.REP_RCVD:
            pair.do(1, "establish", mine, pair.now)
        for lid, number in ((1, mine), (2, pair.requested() if "request" in pair.whats(2) else 0)):
            if parts & lid and (lid, "part") not in done and pair.state(lid, number) == State.ESTABLISHED:
                done.add((lid, "part"))
                pair.do(lid, "disconnect", number, pair.now)
        if "request" in pair.whats(2) and not pair.wire and pair.state(1, mine) is None:
            pair.do(2, "forget", pair.requested(), pair.now)
    order = ["request", "response", "established", "disconnected", "timewait_exit"]
    for lid in (1, 2):
        whats = pair.whats(lid)
        assert len(set(whats)) == len(whats), whats
        steps = [order.index(what) for what in whats if what in order]
        assert steps == sorted(steps), whats
    # One may have given up while the other was content, as on hardware; then that one lets go.
    for lid, manager in pair.managers.items():
        for number in list(manager.connections):
            pair.do(lid, "forget", number, pair.now)
    pair.run()
    assert not pair.managers[1].connections
    assert not pair.managers[2].connections
