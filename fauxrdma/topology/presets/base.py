"""What a preset is, and what it shares with the others: hosts, cable lengths, and the wiring of switches."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fauxrdma.errors import ConfigError
from fauxrdma.topology.building import SWITCH_LATENCY_NS, SWITCHING, TopologyBuilder
from fauxrdma.topology.graph import INFINIBAND, ROUTING_ENGINES, TIER_NAMES, Topology
from fauxrdma.topology.host_shape import GPUS_PER_HCA, HostShape
from fauxrdma.topology.presets.options import length, on_off, one_of, one_word, option, rate_or_on_off, routing, whole
from fauxrdma.topology.presets.speeds import Speed
from fauxrdma.units import Rate

__all__ = ["HostOptions", "Preset", "Wiring", "build_preset", "spread_storage"]

_USUAL = "usual"
"""The routing engine that a fabric has unless another is asked for."""
_NOWHERE = "nowhere"
"""Where a fabric that is one IP subnet routes."""


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """The options that every preset has: what is inside a host, how long the cables are, and what they speak."""

    gpus: int = option(8, "GPUs of each host", whole(1, 64))
    gpus_per_hca: int = option(
        1, "GPUs that share a compute HCA: 1, 2, 4; 0 for none, GPUs then use the storage HCA", one_of(*GPUS_PER_HCA)
    )
    storage_hcas: int = option(1, "HCAs of each host for storage, after the compute HCAs", whole(0, 16))
    gpus_per_pcie_switch: int = option(2, "GPUs on one PCIe switch", whole(1, 64))
    nvlink: bool | Rate = option(
        False, "NVLink between the GPUs of a host: on (as of the hardware generation), off, or each GPU's rate one way",
        rate_or_on_off,
    )  # fmt: skip
    gpudirect: bool = option(True, "whether HCAs reach GPU memory without the detour over host memory", on_off)
    cable: float = option(3.0, "length of the cables between hosts and switches", length)
    trunk: float = option(20.0, "length of the cables between switches", length)
    transport: str = option(
        INFINIBAND, "infiniband; rocev2, rocev1, iwarp for Ethernet ports and switches that store and forward",
        one_word(*ROUTING_ENGINES),
    )  # fmt: skip
    routing: str = option(
        _USUAL, "what computes the routes: minhop, updn, ftree, dfsssp; on Ethernet ecmp, spray, adaptive",
        routing(_USUAL),
    )  # fmt: skip
    routed: str = option(
        _NOWHERE, "the lowest tier of switches that are IP routers, on Ethernet: spine, core; each part below is an IP "
        "subnet", one_word(_NOWHERE, *TIER_NAMES[1:]),
    )  # fmt: skip

    def shape(self, speed: Speed) -> HostShape:
        """The inside of every host. Raises ConfigError when it cannot be."""
        nvlink = speed.nvlink if self.nvlink is True else self.nvlink or None
        return HostShape(
            gpus=self.gpus,
            gpus_per_hca=self.gpus_per_hca,
            storage_hcas=self.storage_hcas,
            gpus_per_pcie_switch=self.gpus_per_pcie_switch,
            pcie_rate=speed.pcie,
            nvlink_rate=nvlink,
            nvswitches=speed.nvswitches if nvlink else 0,
            gpudirect=self.gpudirect,
        )


class Wiring:
    """A fabric being put together by a preset: `nodes` hosts of one `shape`, all cables of one rate."""

    def __init__(self, nodes: int, shape: HostShape, rate: Rate, cable_m: float, trunk_m: float) -> None:
        self.nodes = nodes
        self.shape = shape
        self.builder = TopologyBuilder(shape)
        self._rate = rate
        self._cable_m = cable_m
        self._trunk_m = trunk_m

    def switches(self, prefix: str, count: int, tier: int, radix: int) -> list[str]:
        """`count` switches called `prefix`1, `prefix`2, ..."""
        return [self.builder.add_switch(f"{prefix}{n}", tier, radix).name for n in range(1, count + 1)]

    def trunks(self, a: str, b: str, count: int) -> None:
        """`count` parallel cables between two switches."""
        for _ in range(count):
            self.builder.connect(a, b, self._rate, self._trunk_m)

    def mesh(self, lower: Iterable[str], upper: Sequence[str], count: int) -> None:
        """`count` cables from each of `lower` to each of `upper`."""
        for low in lower:
            for high in upper:
                self.trunks(low, high, count)

    def host(self, host: int, leaves: Iterable[str]) -> None:
        """Host number `host`, its HCA i on the i-th of `leaves`."""
        self.builder.add_host(host)
        for i, leaf in enumerate(leaves, start=1):
            self.builder.connect(f"n{host}.hca{i}", leaf, self._rate, self._cable_m)


@dataclass(frozen=True, kw_only=True)
class Preset(ABC):
    """A named fabric; its fields are its own options. `usual` are the defaults of the common options (`HostOptions`)
    where this preset differs; `usual_speed` is the rate without one being asked for."""

    name: ClassVar[str]
    summary: ClassVar[str]
    usual_speed: ClassVar[str] = "hdr"
    usual: ClassVar[Mapping[str, Any]] = {}

    @abstractmethod
    def max_nodes(self, shape: HostShape) -> int:
        """How many nodes of this shape the ports hold; 0 if not even one."""

    @abstractmethod
    def limit(self, shape: HostShape) -> str:
        """Why there cannot be a node more: which switch runs out of ports, and what the others are for."""

    @abstractmethod
    def plug(self, wiring: Wiring) -> None:
        """Add the switches, the hosts and all cables. `wiring.nodes` is at most `max_nodes`."""

    def islands(self, shape: HostShape) -> int:
        """How many parts without a way between them the fabric is meant to have."""
        return 1


def build_preset(preset: Preset, hosts: HostOptions, speed: Speed, nodes: int, name: str) -> Topology:
    """The topology called `name`. Raises ConfigError when so many nodes do not fit."""
    shape = hosts.shape(speed)
    most = preset.max_nodes(shape)
    if nodes > most:
        fit = f"at most {most} node{'' if most == 1 else 's'} fit{'s' if most == 1 else ''}" if most else "none fits"
        raise ConfigError(f"{name} cannot hold {nodes} node{'' if nodes == 1 else 's'}: {preset.limit(shape)}; {fit}")
    wiring = Wiring(nodes, shape, speed.cable, hosts.cable, hosts.trunk)
    preset.plug(wiring)
    return wiring.builder.build(
        name=name,
        description=preset.summary,
        hosts=nodes,
        switch_latency_ns=SWITCH_LATENCY_NS[hosts.transport],
        switching=SWITCHING[hosts.transport],
        transport=hosts.transport,
        routing=None if hosts.routing == _USUAL else hosts.routing,
        islands=preset.islands(shape),
        routed=None if hosts.routed == _NOWHERE else hosts.routed,
    )


def defaults(preset: type[Preset]) -> dict[str, Any]:
    """Every option of a preset, its own first, with the default."""
    own = {field.name: field.default for field in dataclasses.fields(preset)}
    common = {field.name: field.default for field in dataclasses.fields(HostOptions)}
    return {**own, **common, **preset.usual}


def spread_storage(used: list[int], shape: HostShape) -> list[int]:
    """Where the storage HCAs of the next node go: each to the leaf with the fewest ports taken, the lowest number on a
    tie, so that they cost each leaf as few ports as possible. Counts them in `used`."""
    placed = []
    for _ in range(shape.storage_hcas):
        leaf = used.index(min(used))
        used[leaf] += 1
        placed.append(leaf)
    return placed
