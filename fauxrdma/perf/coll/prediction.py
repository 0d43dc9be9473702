"""What the model of the fabric alone says a call takes: the plan that the ranks use, played over the fabric's links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from fauxrdma.collectives.algorithms import ALGORITHMS, DEFAULTS
from fauxrdma.collectives.candidates import LANES, OPERATIONS, SLOT_BYTES, Ranks
from fauxrdma.collectives.channelled import ChannelledPlan
from fauxrdma.collectives.channels import PREFER_SAME_NIC, ChannelRoute, channel_routes
from fauxrdma.collectives.fabric_cost import fabric_cost
from fauxrdma.collectives.plan import Plan, Slice
from fauxrdma.collectives.point_to_point import EAGER_BYTES, HEADER_BYTES
from fauxrdma.collectives.rank_paths import HCA, NVLINK, RankPaths
from fauxrdma.collectives.request import Request
from fauxrdma.collectives.selector import Selector
from fauxrdma.collectives.stepwise import Receive, Send, Step, step_plan
from fauxrdma.communicator.algorithm_choice import AUTO, size_of
from fauxrdma.communicator.channel_set import channel_slot_bytes
from fauxrdma.communicator.messages import SLOT_BYTES as MESSAGE_SLOT_BYTES
from fauxrdma.communicator.messages import SLOTS as MESSAGE_SLOTS
from fauxrdma.communicator.settings import CollectiveSettings
from fauxrdma.errors import FauxrdmaError
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.perf.coll.operations import Case
from fauxrdma.topology.rails import rails_of
from fauxrdma.topology.rank_places import RankPlace

__all__ = ["Predictor", "sendrecv_plan"]


class Predictor:
    """Predicts for ranks at `places` on the fabric of `manager`, whose communicators have `settings`."""

    def __init__(self, manager: SubnetManager, places: Sequence[RankPlace], settings: CollectiveSettings) -> None:
        self._settings = settings
        self._paths = RankPaths(manager, places, NVLINK if settings.share_memory else HCA)
        self._ranks = Ranks.of(manager.topology, places, SLOT_BYTES, LANES)
        self._has_rails = bool(rails_of(manager.topology))
        self._selector = Selector(
            self._paths,
            ranks=self._ranks,
            routes=self._routes(places),
            channel_slot_bytes=channel_slot_bytes(SLOT_BYTES, settings.channels),
        )
        self._plan_ns = lru_cache(maxsize=4096)(self._played)
        self._messages_ns = lru_cache(maxsize=4096)(self._played_messages)

    def _routes(self, places: Sequence[RankPlace]) -> tuple[ChannelRoute, ...]:
        settings = self._settings
        if settings.channels == 1 and settings.cross_nic is None:
            return ()
        policy = PREFER_SAME_NIC if settings.cross_nic is None else settings.cross_nic
        hcas = [place.hca for place in places]
        return channel_routes(self._ranks.nodes, hcas, self._ranks.rails or (), settings.channels, policy)

    def algorithm(self, case: Case) -> str:
        """What the ranks will use, as far as can be told before they run."""
        operation = case.operation.name
        if operation not in DEFAULTS:
            return "direct"
        named = self._settings.algorithms.algorithm(operation)
        if named == AUTO and operation in OPERATIONS:
            return self._selector.choose(operation, size_of(self._request(case))).algorithm
        if named is not None:
            return named
        nodes = self._ranks.nodes
        hands_over = self._settings.pxn and self._has_rails and len(nodes) > 1 and max(map(len, nodes)) > 1
        return "pxn" if operation == "all_to_all" and hands_over else DEFAULTS[operation]

    def name_of(self, case: Case, plan_algorithm: str) -> str:
        """What users call the algorithm whose plans call themselves `plan_algorithm`: a chain, say, is a ring cut
        open."""
        operation = case.operation.name
        if operation not in DEFAULTS:
            return plan_algorithm
        names = dict.fromkeys([self.algorithm(case), plan_algorithm, *ALGORITHMS[operation]])
        for name in names:
            try:
                if self._plan(self._request(case), name, 0).algorithm == plan_algorithm:
                    return name
            except FauxrdmaError:
                continue
        return plan_algorithm

    def predicted_ns(self, case: Case, algorithm: str) -> int | None:
        """Fabric time of one call by `algorithm`, from all ranks' entry to the last one's return, in ns; None where the
        model does not know: ranks moved to other HCAs by NCCL_IB_HCA, plans that cannot be had here."""
        if self._settings.hcas.entries:
            return None
        try:
            if case.operation.name == "sendrecv":
                return self._messages_ns(case.size)
            request = self._request(case)
            pieces = 0
            if self._settings.algorithms.algorithm(request.operation) == AUTO:
                choice = self._selector.choose(request.operation, size_of(request))
                pieces = choice.pieces.get(algorithm, 0)
            return self._plan_ns(request, algorithm, pieces)
        except FauxrdmaError:
            return None

    def _plan(self, request: Request, algorithm: str, pieces: int) -> Plan | ChannelledPlan:
        return self._selector.plan_of(replace(request, pieces=pieces), algorithm)

    def _played(self, request: Request, algorithm: str, pieces: int) -> int:
        return fabric_cost(self._plan(request, algorithm, pieces), request.itemsize, self._paths).predicted_ns

    def _played_messages(self, nbytes: int) -> int:
        return fabric_cost(sendrecv_plan(nbytes, self._paths.world_size), 1, self._paths).predicted_ns

    def _request(self, case: Case) -> Request:
        n, count = case.world_size, case.count
        counts: int | tuple[int, ...] | tuple[tuple[int, ...], ...] = count
        if case.operation.name == "all_to_all":
            counts = ((count,) * n,) * n
        elif case.operation.by_blocks:
            counts = (count,) * n
        return Request(
            case.operation.name,
            n,
            counts,
            case.element.itemsize,
            SLOT_BYTES,
            LANES,
            max(0, case.root),
            nodes=self._ranks.nodes,
            rails=self._ranks.rails,
        )


def sendrecv_plan(nbytes: int, world_size: int) -> Plan:
    """Every rank sends `nbytes` to the next and receives from the one before, in messages as a communicator's send and
    recv exchange them: a short one at once, a long one in parts after a request and its answer. Counts are bytes."""
    parts = -(-nbytes // (MESSAGE_SLOT_BYTES - HEADER_BYTES))
    asks = nbytes > EAGER_BYTES
    total = nbytes + HEADER_BYTES * max(1, parts)

    def steps(rank: int) -> Iterator[Step]:
        after, before = (rank + 1) % world_size, (rank - 1) % world_size
        header = Slice("input", 0, HEADER_BYTES)
        if asks:
            yield [Send(after, header), Receive(before, Slice("output", 0, HEADER_BYTES))]
            yield [Send(before, header), Receive(after, Slice("output", 0, HEADER_BYTES))]
        yield [Send(after, Slice("input", 0, total)), Receive(before, Slice("output", 0, total))]

    def sends(rank: int) -> Iterator[int]:
        yield from (HEADER_BYTES, HEADER_BYTES) if asks else ()
        yield total

    return step_plan(
        "sendrecv",
        "direct",
        world_size,
        {"input": total, "output": total},
        rounds=3 if asks else 1,
        chunk=MESSAGE_SLOT_BYTES,
        lanes=MESSAGE_SLOTS,
        order="",
        steps=steps,
        sends=sends,
    )
