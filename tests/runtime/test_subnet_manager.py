"""The subnet manager service over real sockets, with fake daemons and labs that speak its protocol."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from fabric_peers import Peer, hello

from fauxrdma.errors import ConfigError, SetupError
from fauxrdma.runtime import manager_connection
from fauxrdma.runtime import subnet_manager as module
from fauxrdma.runtime.host_probe import host_bytes_per_s
from fauxrdma.runtime.subnet_manager import SubnetManagerService
from fauxrdma.topology.loading import load_topology
from fauxrdma.wire.control import pack_frame
from fauxrdma.wire.fabric_messages import (
    CONTROL_VERSION,
    Counters,
    Directory,
    FabricReady,
    FabricReport,
    FlowStart,
    FlowStop,
    FlushDone,
    FlushRequest,
    LabHello,
    LabWelcome,
    LandedCounter,
    PairCounter,
    PathAnswer,
    PathQuery,
    RateGrant,
    ReadyQuery,
    Refusal,
    ReportQuery,
)

HDR_PAYLOAD = 200_000_000_000 * 4096 // (4096 + 26)

Address = tuple[str, int]
Serve = Callable[..., Awaitable[tuple[SubnetManagerService, Address]]]


@pytest_asyncio.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts services on free loopback ports and closes them at the end, checking that nothing is left."""
    services: list[SubnetManagerService] = []

    async def start(
        fabric: str = "seed-rail8", nodes: int = 2, gpus: int = 2, clock: str = "paced", dilation: float | None = 1000.0
    ) -> tuple[SubnetManagerService, Address]:
        service = SubnetManagerService(load_topology(fabric, nodes, gpus), clock=clock, dilation=dilation, seed=5)
        services.append(service)
        return service, await service.start()

    yield start
    for service in services:
        await service.close()
        await service.close()  # idempotent
    await asyncio.sleep(0)
    left = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    assert left == []


async def two_nodes(address: Address) -> tuple[Peer, Peer]:
    a, _ = await Peer.node(address, 0)
    b, _ = await Peer.node(address, 1)
    await a.recv(Directory)
    await b.recv(Directory)
    return a, b


async def test_a_daemon_is_welcomed_with_its_hcas_and_the_clock(serve: Serve) -> None:
    service, address = await serve()
    before = time.monotonic_ns()
    peer, welcome = await Peer.node(address, 1)
    assert (welcome.version, welcome.fabric, welcome.clock) == (CONTROL_VERSION, "seed-rail8", "paced")
    assert (welcome.dilation, welcome.seed) == (1000.0, 5)
    assert welcome.epoch_ns <= before
    assert welcome.quantum == 24576  # 1 ms at 25 GB/s / 1000, in whole packets of 4096
    assert [h.name for h in welcome.hcas] == [f"hca{i}" for i in range(1, 10)]
    assert [h.lid for h in welcome.hcas] == list(range(10, 19))
    assert [h.gpus for h in welcome.hcas] == [[0], [1], [2], [3], [4], [5], [6], [7], []]
    assert [h.leaf for h in welcome.hcas[:8]] == [f"leaf{i}" for i in range(1, 9)]
    assert {h.rate_bps for h in welcome.hcas} == {200 * 10**9}
    assert {h.mtu for h in welcome.hcas} == {4096}
    assert len({h.guid for h in welcome.hcas}) == len({h.gid for h in welcome.hcas}) == 9
    assert service.now_ns() <= (time.monotonic_ns() - welcome.epoch_ns) // 1000
    await peer.close()


async def test_the_directory_comes_when_all_are_in_and_again_without_a_lost_node(serve: Serve) -> None:
    _, address = await serve(nodes=3)
    peers = [(await Peer.node(address, node))[0] for node in (2, 0)]
    lab, _ = await Peer.lab(address)
    lab.send(ReadyQuery())
    lab.send(PathQuery(1, 2))
    await lab.recv(PathAnswer)  # so the ready query has been seen, and not answered yet
    last, _ = await Peer.node(address, 1)
    directory = await last.recv(Directory)
    assert [e.lid for e in directory.entries] == list(range(1, 28))
    assert {(e.node, e.port) for e in directory.entries} == {(0, 9000), (1, 9001), (2, 9002)}
    assert directory.entries[9].hca == "hca1"
    for peer in peers:
        assert await peer.recv(Directory) == directory
    assert (await lab.recv(FabricReady)).entries == directory.entries
    lab.send(ReadyQuery())
    assert (await lab.recv(FabricReady)).entries == directory.entries  # at once

    await last.close()
    for peer in peers:
        assert {e.node for e in (await peer.recv(Directory)).entries} == {0, 2}
    lab.send(ReportQuery(False))
    for peer in peers:
        token = (await peer.recv(FlushRequest)).token
        peer.send(FlushDone(token))
    assert (await lab.recv(FabricReport)).lost_nodes == [1]

    again, _ = await Peer.node(address, 1)  # a restarted daemon may come back
    assert {e.node for e in (await again.recv(Directory)).entries} == {0, 1, 2}
    lab.send(ReportQuery(False))
    for peer in (*peers, again):
        while not isinstance(message := await peer.next(), FlushRequest):
            assert isinstance(message, Directory)
        peer.send(FlushDone(message.token))
    assert (await lab.recv(FabricReport)).lost_nodes == []


async def test_paths_are_named_links_with_latency_and_rate(serve: Serve) -> None:
    _, address = await serve()
    peer, _ = await Peer.node(address, 0)
    peer.send(PathQuery(1, 11))  # n0.hca1 on leaf1 to n1.hca2 on leaf2
    answer = await peer.recv(PathAnswer)
    assert answer.reachable
    assert answer.switches == 3
    assert answer.links[0] == "n0.gpu0->n0.pcie0"
    assert answer.links[2] == "n0.hca1->leaf1"
    assert answer.links[3].startswith("leaf1->spine")
    assert answer.links[-1] == "n1.pcie0->n1.gpu1"
    assert answer.latency_ns == 900 + 3 * 130 + 2 * 15 + 2 * 100
    assert answer.rate_bps == HDR_PAYLOAD
    peer.send(PathQuery(1, 999), PathQuery(1, 20))  # nothing there; a switch
    for _ in range(2):
        nowhere = await peer.recv(PathAnswer)
        assert (nowhere.reachable, nowhere.links) == (False, [])


async def test_flows_on_one_link_share_it_and_get_it_back(serve: Serve) -> None:
    _, address = await serve()
    a, b = await two_nodes(address)
    a.send(FlowStart(1, 1, 10, 1.0))
    assert (await a.recv(RateGrant)).rates == {1: HDR_PAYLOAD}
    # The same flow id on another connection is another flow; both end at n1.hca1.
    b.send(FlowStart(1, 11, 10, 1.0))
    assert (await b.recv(RateGrant)).rates == {1: round(HDR_PAYLOAD / 2)}
    assert (await a.recv(RateGrant)).rates == {1: round(HDR_PAYLOAD / 2)}
    b.send(FlowStart(1, 11, 10, 3.0))  # the same flow again, with more weight
    assert (await b.recv(RateGrant)).rates == {1: pytest.approx(HDR_PAYLOAD * 3 / 4, abs=1)}
    assert (await a.recv(RateGrant)).rates == {1: pytest.approx(HDR_PAYLOAD / 4, abs=1)}
    b.send(FlowStop(1), FlowStop(77))  # stopping an unknown flow is harmless
    assert (await a.recv(RateGrant)).rates == {1: HDR_PAYLOAD}


async def test_starts_that_arrive_together_cost_one_computation_and_one_message(serve: Serve) -> None:
    service, address = await serve()
    a, _b = await two_nodes(address)
    computed = 0
    grants = service.state.grants

    def counted() -> dict[int, dict[int, int]]:
        nonlocal computed
        computed += 1
        return grants()

    service.state.grants = counted  # type: ignore[method-assign]
    a.send(*(FlowStart(flow, 1, 10, 1.0) for flow in range(8)), FlowStop(7), FlowStart(8, 2, 11, 1.0))
    share = HDR_PAYLOAD / 7
    rates = (await a.recv(RateGrant)).rates
    assert rates == {**{flow: pytest.approx(share, abs=1) for flow in range(7)}, 8: HDR_PAYLOAD}
    assert computed == 1
    a.send(FlowStop(8))  # frees nothing that others could use: no message follows
    a.send(PathQuery(1, 2))
    await a.recv(PathAnswer)
    a.send(FlowStop(6))
    assert set((await a.recv(RateGrant)).rates) == {0, 1, 2, 3, 4, 5}


async def test_a_lost_node_frees_what_its_flows_held(serve: Serve) -> None:
    _, address = await serve()
    a, b = await two_nodes(address)
    a.send(FlowStart(1, 1, 10, 1.0))
    await a.rates({1: HDR_PAYLOAD})
    b.send(FlowStart(1, 11, 10, 1.0))
    await a.rates({1: round(HDR_PAYLOAD / 2)})
    await b.close()
    got = [await a.next(), await a.next()]
    assert sum(isinstance(message, Directory) for message in got) == 1
    assert RateGrant({1: HDR_PAYLOAD}) in got


async def test_the_report_adds_up_bytes_per_link_and_pair(serve: Serve) -> None:
    service, address = await serve(dilation=1.0)
    a, b = await two_nodes(address)
    lab, welcome = await Peer.lab(address)
    assert (welcome.nodes, welcome.fabric, welcome.dilation) == (2, "seed-rail8", 1.0)
    lab.send(ReportQuery(True))
    counters = {
        a: Counters(
            [PairCounter(1, 10, 4096, 1, 500), PairCounter(1, 11, 1000, 2, 100, memory=1)],
            [0, 10, 20],
            3,
            landed=[LandedCounter(1, 0, 7)],
        ),
        b: Counters(
            [PairCounter(10, 1, 7, 1, 1)], [-5], 0, landed=[LandedCounter(10, 0, 4096), LandedCounter(11, 2, 1000)]
        ),
    }
    for peer, sent in counters.items():
        request = await peer.recv(FlushRequest)
        peer.send(sent, FlushDone(request.token))
    report = await lab.recv(FabricReport)
    links = {link.name: link for link in report.links}
    assert links["n0.hca1->leaf1"].nbytes == 5096
    # Out of host memory and of GPU 0; into host memory and into GPU 1, by each end's own word.
    assert links["n0.pcie0->n0.hca1"].nbytes == 5096
    assert links["n0.mem->n0.pcie0"].nbytes == 4096
    assert links["n0.gpu0->n0.pcie0"].nbytes == 1000
    assert links["n0.pcie0->n0.mem"].nbytes == 7
    assert links["n1.pcie0->n1.mem"].nbytes == 4096
    assert links["n1.pcie0->n1.gpu1"].nbytes == 1000
    assert links["n1.pcie0->n1.gpu1"].utilisation > 0
    assert links["leaf1->n1.hca1"].nbytes == 4096
    assert links["leaf1->n0.hca1"].nbytes == 7
    assert sum(link.nbytes for name, link in links.items() if name.startswith("leaf1->spine")) == 1000
    assert sum(link.nbytes for link in report.links if link.kind == "cable") == 2 * 4096 + 4 * 1000 + 2 * 7
    # No FlowStart was seen: the sender's own busy time counts. 1000 bytes in 100 ns on the cable from the spine.
    assert links["leaf2->n1.hca2"].utilisation == pytest.approx(1000 / (HDR_PAYLOAD / 8e9 * 100))
    assert links["n0.hca1->leaf1"].rate_bps == 200 * 10**9
    assert [(p.src, p.dst, p.nbytes, p.frames, p.switches, p.latency_ns) for p in report.pairs] == [
        ("n0.hca1", "n1.hca1", 4096, 1, 1, 1060),
        ("n0.hca1", "n1.hca2", 1000, 2, 3, 1520),
        ("n1.hca1", "n0.hca1", 7, 1, 1, 1060),
    ]
    assert (report.debt_p50_percent, report.debt_p99_percent, report.debt_samples) == (0.0, 2.0, 4)
    assert (report.retransmits, report.lost_nodes) == (3, [])
    assert 0 < report.elapsed_ns <= service.now_ns()

    lab.send(ReportQuery(False))  # the counters were reset
    for peer in (a, b):
        peer.send(FlushDone((await peer.recv(FlushRequest)).token))
    empty = await lab.recv(FabricReport)
    assert empty.pairs == []
    assert {link.nbytes for link in empty.links} == {0}
    assert {link.utilisation for link in empty.links} == {0.0}
    assert (empty.debt_samples, empty.retransmits) == (0, 0)
    assert empty.elapsed_ns < report.elapsed_ns + service.now_ns()


async def test_utilisation_is_over_the_time_a_flow_was_active(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    service, address = await serve()
    a, b = await two_nodes(address)
    clock = 0
    monkeypatch.setattr(service, "now_ns", lambda: clock)
    lab, _ = await Peer.lab(address)

    async def at(now: int, message: FlowStart | FlowStop) -> None:
        nonlocal clock
        clock = now
        a.send(message, PathQuery(1, 2))
        while not isinstance(await a.next(), PathAnswer):
            pass

    await at(1000, FlowStart(1, 1, 10, 1.0))
    await at(1500, FlowStart(2, 1, 11, 1.0))  # overlaps on n0.hca1's links
    await at(2000, FlowStop(1))
    await at(3000, FlowStop(2))
    clock = 9000
    lab.send(ReportQuery(False))
    request = await a.recv(FlushRequest)
    a.send(Counters([PairCounter(1, 10, 2000, 1, 0), PairCounter(1, 11, 3000, 1, 0)], [], 0), FlushDone(request.token))
    b.send(FlushDone((await b.recv(FlushRequest)).token))
    links = {link.name: link for link in (await lab.recv(FabricReport)).links}
    per_ns = HDR_PAYLOAD / 8e9
    assert links["n0.hca1->leaf1"].utilisation == pytest.approx(5000 / (2000 * per_ns))
    assert links["leaf1->n1.hca1"].utilisation == pytest.approx(2000 / (1000 * per_ns))
    assert links["leaf2->n1.hca2"].utilisation == pytest.approx(3000 / (1500 * per_ns))


async def test_a_report_does_not_wait_for_a_daemon_that_is_stuck_or_gone(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH_TIMEOUT_S", 0.05)
    _, address = await serve()
    a, b = await two_nodes(address)
    lab, _ = await Peer.lab(address)
    lab.send(ReportQuery(False))
    a.send(FlushDone((await a.recv(FlushRequest)).token))
    await b.recv(FlushRequest)  # and never answers
    await lab.recv(FabricReport)
    monkeypatch.setattr(module, "FLUSH_TIMEOUT_S", 1000.0)
    lab.send(ReportQuery(False))
    a.send(FlushDone((await a.recv(FlushRequest)).token))
    await b.recv(FlushRequest)
    await b.close()
    assert (await lab.recv(FabricReport)).lost_nodes == [1]
    await a.close()
    lab.send(ReportQuery(False))  # nobody left to ask
    assert (await lab.recv(FabricReport)).lost_nodes == [0, 1]


async def test_a_report_for_a_lab_that_left_is_dropped(serve: Serve) -> None:
    _, address = await serve()
    a, b = await two_nodes(address)
    lab, _ = await Peer.lab(address)
    lab.send(ReportQuery(False))
    tokens = [(await peer.recv(FlushRequest)).token for peer in (a, b)]
    await lab.close()
    for peer, token in zip((a, b), tokens, strict=True):
        peer.send(FlushDone(token), PathQuery(1, 2))
        await peer.recv(PathAnswer)


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (
            hello(0, version=99),
            f"control version 99, the subnet manager speaks {CONTROL_VERSION}: install the same release",
        ),
        (hello(2), "node 2 is not in fabric seed-rail8: it has nodes 0 to 1"),
        (hello(-1), "node -1 is not in fabric"),
        (hello(1), "node 1 is already in fabric seed-rail8 (daemon pid 4243 at 127.0.0.1:9001)"),
        (LabHello(CONTROL_VERSION + 1), f"this lab speaks control version {CONTROL_VERSION + 1}"),
        (FlowStart(1, 1, 2, 1.0), "starts with NodeHello or LabHello, not with FlowStart"),
    ],
)
async def test_a_bad_first_message_is_refused_with_a_sentence(serve: Serve, first: object, says: str) -> None:
    _, address = await serve()
    good, _ = await Peer.node(address, 1)
    bad = await Peer.connect(address)
    bad.send(first)  # type: ignore[arg-type]
    assert says in (await bad.recv(Refusal)).reason
    assert await bad.next() is None  # closed
    good.send(PathQuery(1, 2))
    await good.recv(PathAnswer)  # the others do not notice


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (FlowStart(1, 10, 1, 1.0), "node 0 has no HCA with LID 10"),
        (FlowStart(1, 1, 999, 1.0), "nothing in seed-rail8 has LID 999"),
        (FlowStart(1, 1, 19, 1.0), "leaf1: traffic runs between HCAs"),
        (FlowStart(1, 1, 10, 0.0), "weight 0.0"),
        (FlowStart(1, 1, 10, float("nan")), "weight nan"),
        (Counters([PairCounter(10, 1, 1, 1, 1)], [], 0), "node 0 has no HCA with LID 10"),
        (Counters([PairCounter(1, 19, 1, 1, 1)], [], 0), "LID 19, which no HCA has"),
        (Counters([PairCounter(1, 10, -1, 1, 1)], [], 0), "less than nothing"),
        (Counters([PairCounter(1, 10, 1, 1, 1, memory=9)], [], 0), "cannot reach memory 9: its host has 8 GPUs"),
        (Counters([], [], 0, landed=[LandedCounter(10, 0, 1)]), "node 0 has no HCA with LID 10"),
        (Counters([], [], 0, landed=[LandedCounter(1, -2, 1)]), "a memory it does not have"),
        (Counters([], [], 0, landed=[LandedCounter(1, 0, -1)]), "less than nothing"),
        (ReadyQuery(), "may not send ReadyQuery"),
    ],
)
async def test_a_daemon_that_breaks_the_rules_is_refused_and_lost(serve: Serve, bad: object, says: str) -> None:
    _, address = await serve()
    a, b = await two_nodes(address)
    a.send(bad, FlowStart(2, 1, 10, 1.0))  # type: ignore[arg-type]
    assert says in (await a.recv(Refusal)).reason
    assert await a.next() is None
    assert {e.node for e in (await b.recv(Directory)).entries} == {1}


async def test_a_lab_that_breaks_the_rules_is_refused(serve: Serve) -> None:
    _, address = await serve()
    lab, _ = await Peer.lab(address)
    lab.send(FlowStop(1))
    assert "a lab may not send FlowStop" in (await lab.recv(Refusal)).reason
    assert await lab.next() is None


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", struct.pack("<I", 3) + b"abc", struct.pack("<I", 1) + b"\xc1"]
)
async def test_garbage_is_refused(serve: Serve, garbage: bytes) -> None:
    _, address = await serve()
    peer = await Peer.connect(address)
    peer.send_raw(garbage)
    await peer.recv(Refusal)
    assert await peer.next() is None


async def test_silence_instead_of_a_hello_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_connection, "HELLO_TIMEOUT_S", 0.05)
    _, address = await serve()
    polite, _ = await Peer.node(address, 0)
    peer = await Peer.connect(address)
    assert "no NodeHello or LabHello" in (await peer.recv(Refusal)).reason
    assert await peer.next() is None
    polite.send(PathQuery(1, 2))  # connected for longer, but it did say hello
    await polite.recv(PathAnswer)


async def test_a_message_may_arrive_in_pieces(serve: Serve) -> None:
    _, address = await serve()
    peer = await Peer.connect(address)
    for byte in pack_frame(LabHello(CONTROL_VERSION)):
        peer.send_raw(bytes([byte]))
        await asyncio.sleep(0)
    await peer.recv(LabWelcome)


async def test_clock_none_shapes_nothing(serve: Serve) -> None:
    _, address = await serve(clock="none", dilation=None)
    a, welcome = await Peer.node(address, 0)
    assert (welcome.clock, welcome.dilation, welcome.quantum) == ("none", 1.0, 1 << 20)
    b, _ = await Peer.node(address, 1)
    await a.recv(Directory)
    await b.recv(Directory)
    lab, _ = await Peer.lab(address)
    lab.send(ReportQuery(False))
    sent = Counters([PairCounter(1, 10, 100, 1, 10)], [], 0)
    a.send(sent, FlushDone((await a.recv(FlushRequest)).token))
    b.send(FlushDone((await b.recv(FlushRequest)).token))
    report = await lab.recv(FabricReport)
    assert max(link.nbytes for link in report.links) == 100
    assert {link.utilisation for link in report.links} == {0.0}


async def test_the_port_in_use_is_named(serve: Serve) -> None:
    _, (host, port) = await serve()
    second = SubnetManagerService(load_topology("fat-tree"), dilation=100.0)
    with pytest.raises(SetupError, match=f"port {port} on {host} is in use"):
        await second.start(host, port)
    with pytest.raises(SetupError, match="cannot listen on 203"):
        await second.start("203.0.113.1", 0)
    await second.close()


def test_a_whole_conversation_on_uvloop() -> None:
    """The loop of the real process: its transports are not asyncio's classes."""
    uvloop = pytest.importorskip("uvloop")

    async def converse() -> None:
        service = SubnetManagerService(load_topology("fat-tree", 2, 1), dilation=10.0)
        address = await service.start()
        a, b = await two_nodes(address)
        a.send(FlowStart(1, 1, 10, 1.0))
        await a.rates({1: HDR_PAYLOAD})
        b.send(FlowStart(1, 11, 10, 1.0))
        await a.rates({1: round(HDR_PAYLOAD / 2)})
        lab, _ = await Peer.lab(address)
        lab.send(ReportQuery(False))
        for peer in (a, b):
            while not isinstance(message := await peer.next(), FlushRequest):
                assert message is not None
            peer.send(FlushDone(message.token))
        assert (await lab.recv(FabricReport)).lost_nodes == []
        bad = await Peer.connect(address)
        bad.send(hello(0))
        assert "already in fabric" in (await bad.recv(Refusal)).reason
        await b.close()
        while not isinstance(message := await a.next(), Directory):
            assert message is not None
        await service.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(converse())


def test_senseless_settings_are_refused() -> None:
    topology = load_topology("fat-tree")
    with pytest.raises(ConfigError, match="unknown clock 'fast'"):
        SubnetManagerService(topology, clock="fast")
    for dilation in (0.0, 0.5, -3.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="dilation"):
            SubnetManagerService(topology, dilation=dilation)


def test_idle_nodes_slow_nothing_down() -> None:
    whole = load_topology("fat-tree", 8)
    alone = SubnetManagerService(load_topology("fat-tree", 1), dilation=1900.0)
    assert SubnetManagerService(whole, dilation=1900.0, nodes_in_use=1).quantum == alone.quantum
    # 64 HCAs take longer bursts than 8, so that the host handles no more of them per second.
    assert SubnetManagerService(whole, dilation=1900.0).quantum > alone.quantum
    with pytest.raises(ConfigError, match="has 8 nodes of 8 GPUs, asked for 9"):
        SubnetManagerService(whole, dilation=1900.0, nodes_in_use=9)


def test_automatic_dilation_follows_the_measured_host() -> None:
    service = SubnetManagerService(load_topology("fat-tree", 2, 1))
    assert service.dilation == 1900.0  # two HCAs: timing decides, not this host's throughput
    begin = time.perf_counter()
    assert host_bytes_per_s() > 50e6
    assert time.perf_counter() - begin < 5
