"""Where every rank of a communicator sits: node, GPU, HCA, rail, who may share memory with whom; and that their
settings agree.

Each rank knows its own place, from its HCA and its environment; all learn all places in one exchange through the
rendezvous store. The ranks are the communicator's own, which for a sub-group of a job are not the job's: this is why
nothing here counts on RANK or LOCAL_WORLD_SIZE to say where *others* are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import msgpack

from fauxrdma.communicator.settings.agreement import check_agreement
from fauxrdma.errors import CollectiveError, ConfigError, FauxrdmaError
from fauxrdma.runtime.host_identity import host_identity
from fauxrdma.topology.rails import rails_by_leaves
from fauxrdma.topology.rank_places import GPU_VARIABLE, PLACES_VARIABLE, RankPlace, parse_places
from fauxrdma.verbs import Context

__all__ = [
    "Layout",
    "Seat",
    "announce_seat",
    "data_gpu",
    "fetch_seat",
    "learn_layout",
    "own_seat",
    "seat_is_known",
]


class _Store(Protocol):
    def set(self, key: str, value: Any) -> Any: ...

    def get(self, key: str) -> Any: ...

    def check(self, keys: list[str]) -> bool: ...


@dataclass(frozen=True, slots=True)
class Seat:
    """What one rank tells the others: its place, the leaf switch of its HCA, and the identity of its host. `rail` is
    one that the user gave it; None: whatever the leaves say. `settings` are those that all ranks must have the same."""

    place: RankPlace
    leaf: str
    host: str
    rail: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def beside(self, other: Seat) -> bool:
        """Whether both are on one emulated node of one host: then NVLink joins them, and they may map the same
        memory."""
        return self.place.node == other.place.node and self.host == other.host


@dataclass(frozen=True)
class Layout:
    """The seats of all ranks, as rank `rank` sees them."""

    rank: int
    seats: tuple[Seat, ...]

    @cached_property
    def places(self) -> list[RankPlace]:
        """By rank."""
        return [seat.place for seat in self.seats]

    @cached_property
    def nodes(self) -> list[list[int]]:
        """The ranks of each node, in order of their GPUs: what hierarchical plans take. An emulated node that ranks on
        several hosts share counts once per host."""
        by_node: dict[tuple[int, str], list[int]] = {}
        for rank, seat in enumerate(self.seats):
            by_node.setdefault((seat.place.node, seat.host), []).append(rank)
        in_order = sorted(by_node, key=lambda node_and_host: node_and_host[0])  # stable: then by first rank
        return [sorted(by_node[node], key=lambda rank: self.places[rank].gpu) for node in in_order]

    @cached_property
    def rails(self) -> list[int]:
        """The rail of each rank's HCA, by rank: the one its user gave, else what the leaves of the HCAs say, else (on a
        fabric without rails) the HCA's index from 0."""
        return [
            self._by_leaves.get(seat.place.hca, seat.place.hca - 1) if seat.rail is None else seat.rail
            for seat in self.seats
        ]

    @property
    def has_rails(self) -> bool:
        """Whether the ranks' HCAs are on rails that keep apart, by their leaves or by what the user said."""
        return bool(self._by_leaves) or len({seat.rail for seat in self.seats}) > 1

    @cached_property
    def _by_leaves(self) -> dict[int, int]:
        leaves: dict[int, set[str]] = {}
        for seat in self.seats:
            leaves.setdefault(seat.place.hca, set()).add(seat.leaf)
        return rails_by_leaves(leaves)

    def same_node(self, a: int, b: int) -> bool:
        """Whether ranks `a` and `b` are on one emulated node of one host: then NVLink joins them."""
        return self.seats[a].beside(self.seats[b])

    def may_share_memory(self, peer: int) -> bool:
        """Whether this rank and `peer` may map the same memory: one node, and one host with the same namespaces."""
        return self.same_node(self.rank, peer)


def own_seat(
    context: Context, environment: Mapping[str, str] = os.environ, rail: int | None = None, gpu: int | None = None
) -> Seat:
    """Where this process sits: node and HCA are those of `context`.

    The GPU is `gpu` if that is given, else FAUXRDMA_GPU, else that of rank RANK in FAUXRDMA_PLACES, else LOCAL_RANK,
    the latter two only if they use that HCA; else the first GPU that does. Raises ConfigError for variables that make
    no sense.
    """
    hca = context.hca
    gpu = _gpu(context, environment) if gpu is None else gpu
    return Seat(RankPlace(context.node, gpu, hca.index), hca.leaf, host_identity(), rail)


def data_gpu(context: Context, gpu: int | None = None, environment: Mapping[str, str] = os.environ) -> int | None:
    """The GPU whose memory this process's data is in: `own_seat`'s; None (host memory) on an HCA that no GPU uses,
    unless `gpu` or FAUXRDMA_GPU names one."""
    if gpu is None and not context.hca.gpus and not environment.get(GPU_VARIABLE):
        return None
    return _gpu(context, environment) if gpu is None else gpu


def _gpu(context: Context, environment: Mapping[str, str]) -> int:
    given = environment.get(GPU_VARIABLE, "")
    if given:
        if not given.isdecimal():
            raise ConfigError(f"{GPU_VARIABLE} is {given!r}: it must be the number of a GPU of this node, from 0")
        return int(given)
    hca = context.hca
    rank, local = environment.get("RANK", ""), environment.get("LOCAL_RANK", "")
    places = parse_places(environment.get(PLACES_VARIABLE, ""))
    if rank.isdecimal() and int(rank) < len(places):
        place = places[int(rank)]
        if (place.node, place.hca) == (context.node, hca.index):
            return place.gpu
    if local.isdecimal() and int(local) in hca.gpus:
        return int(local)
    return hca.gpus[0] if hca.gpus else 0


def _key(prefix: str, rank: int) -> str:
    return f"{prefix}fauxrdma/{rank}/seat"


def announce_seat(store: _Store, prefix: str, rank: int, seat: Seat) -> None:
    """Tell the others where this rank sits, under a key of `store` that begins with `prefix`."""
    place = seat.place
    content = [place.node, place.gpu, place.hca, seat.leaf, seat.host, seat.rail, dict(seat.settings)]
    store.set(_key(prefix, rank), msgpack.packb(content, use_bin_type=True))


def seat_is_known(store: _Store, prefix: str, rank: int) -> bool:
    """Whether `rank` has said where it sits."""
    return bool(store.check([_key(prefix, rank)]))


def fetch_seat(store: _Store, prefix: str, rank: int) -> Seat:
    """Where `rank` sits; waits until it has said so."""
    node, gpu, hca, leaf, host, rail, settings = msgpack.unpackb(bytes(store.get(_key(prefix, rank))), raw=False)
    return Seat(RankPlace(node, gpu, hca), leaf, host, rail, settings)


def learn_layout(store: _Store, prefix: str, rank: int, world_size: int) -> Layout:
    """Where all ranks sit, once each has announced it. Raises CollectiveError when one does not within the store's
    timeout, ConfigError when their settings differ."""
    seats = []
    for other in range(world_size):
        try:
            seats.append(fetch_seat(store, prefix, other))
        except FauxrdmaError:
            raise
        except Exception as error:  # a torch store raises its own kinds
            raise CollectiveError(
                f"rank {rank} waited for rank {other} to say where it runs, and gave up: {error}; did that rank end?"
            ) from error
    check_agreement([seat.settings for seat in seats])
    return Layout(rank, tuple(seats))
