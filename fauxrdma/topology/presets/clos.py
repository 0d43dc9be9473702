"""Trees of switches: the two-level fat-tree, NVIDIA's DGX SuperPOD, and the three-level k-ary fat-tree."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from fauxrdma.topology.host_shape import HostShape
from fauxrdma.topology.presets.base import Preset, Wiring
from fauxrdma.topology.presets.options import option, ratio, whole

__all__ = ["FatTree", "KAry", "SuperPod", "spines_for"]


def spines_for(leaves: int, up: int, radix: int) -> int:
    """How many spines join `leaves` leaves with `up` uplinks each: the fewest that have the ports and that each leaf
    can give the same number of cables. One leaf needs none. There must be at most `radix` leaves."""
    if leaves == 1:
        return 0
    return next(spines for spines in range(1, up + 1) if up % spines == 0 and leaves * up // spines <= radix)


@dataclass(frozen=True, kw_only=True)
class FatTree(Preset):
    """Two levels, as small as the nodes allow; with 36 ports up to 36 + 18 switches for 648 HCAs.

    Of a leaf's ports ``up = radix / (1 + oversubscription)`` go to the spines and `oversubscription` times as many to
    hosts, both rounded down.
    """

    name = "fat-tree"
    summary = "Non-blocking two-level fat-tree of 36-port switches; all HCAs of a node on one leaf"
    radix: int = option(36, "ports of every switch", whole(2, 4096))
    oversubscription: Fraction = option(Fraction(1), "ports down for every port up on a leaf", ratio)

    @property
    def up(self) -> int:
        """Ports of a leaf that go to spines."""
        return int(self.radix / (1 + self.oversubscription))

    def nodes_per_leaf(self, shape: HostShape) -> int:
        """How many nodes a leaf takes."""
        return int(self.up * self.oversubscription) // shape.hcas

    def max_nodes(self, shape: HostShape) -> int:
        return self.radix * self.nodes_per_leaf(shape) if self.up else 0

    def limit(self, shape: HostShape) -> str:
        per_leaf = self.nodes_per_leaf(shape)
        if not per_leaf:
            return (
                f"leaf1 ran out of ports (it has {self.radix}, of which {self.up} go up, and a node has {shape.hcas} "
                "HCAs)"
            )
        return (
            f"spine1 ran out of ports (it has {self.radix}, one per leaf, and each {self.radix}-port leaf takes the "
            f"{shape.hcas} HCAs of {per_leaf} node{'' if per_leaf == 1 else 's'})"
        )

    def plug(self, wiring: Wiring) -> None:
        per_leaf = self.nodes_per_leaf(wiring.shape)
        leaves = wiring.switches("leaf", -(-wiring.nodes // per_leaf), 0, self.radix)
        spines = wiring.switches("spine", spines_for(len(leaves), self.up, self.radix), 1, self.radix)
        for host in range(wiring.nodes):
            wiring.host(host, [leaves[host // per_leaf]] * wiring.shape.hcas)
        if spines:
            wiring.mesh(leaves, spines, self.up // len(spines))


@dataclass(frozen=True, kw_only=True)
class SuperPod(Preset):
    """NVIDIA DGX SuperPOD (H100 reference architecture RA-11333, table 4: 8, 16, 24, 32 leaves and 4, 8, 16, 16 spines
    for 1 to 4 scalable units; the B200 edition has 64 and 32 for 8, then a third tier: 128 leaves, 128 spines and 64
    cores for 16 units, twice and four times as many for 32 and 64).

    A scalable unit (SU) has 32 hosts and one leaf per rail: HCA i of each of its hosts is on the SU's leaf i. A leaf
    has as many cables up as down. As the reference says, an SU is cabled in full even when hosts are missing. The
    storage HCAs have a fabric of their own, a non-blocking two-level tree, as there: no way leads from it to the
    compute fabric.

    When the leaves are more than a spine has ports, as many units as half of a spine's ports take (four) are a *pod*
    with a spine for every uplink of a leaf; the j-th spines of all pods share a group of cores. The reference gives the
    counts of this tier, which these are, but not who is cabled to whom.
    """

    name = "superpod"
    summary = "DGX SuperPOD: units of 32 hosts with a leaf per rail below common spines; storage on a fabric of its own"
    usual_speed = "ndr"
    usual: ClassVar[dict[str, Any]] = {"nvlink": True}
    radix: int = option(64, "ports of every switch", whole(2, 4096, even=True))
    su: int = option(32, "hosts of a scalable unit: ports down, and up, of each leaf", whole(1, 2048))

    def islands(self, shape: HostShape) -> int:
        return (shape.compute_hcas > 0) + (shape.storage_hcas > 0)

    def _hosts_per_storage_leaf(self, shape: HostShape) -> int:
        return self.radix // 2 // shape.storage_hcas

    def _units_per_pod(self, shape: HostShape) -> int:
        return self.radix // 2 // shape.compute_hcas

    def _compute_limit(self, shape: HostShape) -> int:
        if 2 * self.su > self.radix:
            return 0
        return self.su * max(self.radix // shape.compute_hcas, self.radix * self._units_per_pod(shape))

    def max_nodes(self, shape: HostShape) -> int:
        limits = [self._compute_limit(shape)] if shape.compute_hcas else []
        if shape.storage_hcas:
            limits.append(self.radix * self._hosts_per_storage_leaf(shape))
        return min(limits)

    def limit(self, shape: HostShape) -> str:
        if 2 * self.su > self.radix:
            return f"leaf1 ran out of ports (it has {self.radix}, and a unit of {self.su} hosts needs {2 * self.su})"
        if shape.compute_hcas and self._compute_limit(shape) == self.max_nodes(shape):
            if self._units_per_pod(shape):
                return (
                    f"core1 ran out of ports (it has {self.radix}, one per pod of {self._units_per_pod(shape)} units "
                    f"of {self.su} hosts)"
                )
            return (
                f"spine1 ran out of ports (it has {self.radix}, one per leaf, and each unit of {self.su} hosts has "
                f"{shape.compute_hcas} leaves)"
            )
        return f"store-spine1 ran out of ports (it has {self.radix}, one per leaf of the storage fabric)"

    def plug(self, wiring: Wiring) -> None:
        shape = wiring.shape
        rails = shape.compute_hcas
        leaves = wiring.switches("leaf", -(-wiring.nodes // self.su) * rails, 0, self.radix)
        per_store = self._hosts_per_storage_leaf(shape) if shape.storage_hcas else wiring.nodes
        stores = wiring.switches("store", -(-wiring.nodes // per_store) if shape.storage_hcas else 0, 0, self.radix)
        for host in range(wiring.nodes):
            first = host // self.su * rails
            storage = [stores[host // per_store]] * shape.storage_hcas if stores else []
            wiring.host(host, leaves[first : first + rails] + storage)
        if len(leaves) > self.radix:
            self._plug_pods(wiring, leaves)
        elif leaves:
            spines = wiring.switches("spine", spines_for(len(leaves), self.su, self.radix), 1, self.radix)
            wiring.mesh(leaves, spines, self.su // max(1, len(spines)))
        if stores:
            up = self.radix // 2
            spines = wiring.switches("store-spine", spines_for(len(stores), up, self.radix), 1, self.radix)
            wiring.mesh(stores, spines, up // max(1, len(spines)))

    def _plug_pods(self, wiring: Wiring, leaves: list[str]) -> None:
        up = self._units_per_pod(wiring.shape) * wiring.shape.compute_hcas  # of a spine: as many as a full pod's leaves
        pods = -(-len(leaves) // up)
        spines = wiring.switches("spine", pods * self.su, 1, self.radix)
        group = spines_for(pods, up, self.radix)
        cores = wiring.switches("core", self.su * group, 2, self.radix)
        for pod in range(pods):
            own = spines[pod * self.su : (pod + 1) * self.su]
            wiring.mesh(leaves[pod * up : (pod + 1) * up], own, 1)
            for j, spine in enumerate(own):
                wiring.mesh([spine], cores[j * group : (j + 1) * group], up // group)


@dataclass(frozen=True, kw_only=True)
class KAry(Preset):
    """The three-level fat-tree of k-port switches of Al-Fares et al. (SIGCOMM 2008).

    k pods of k/2 leaves and k/2 spines, (k/2)^2 cores, k^3/4 ports for HCAs; spine j of every pod is joined to cores
    ``j k/2 + 1`` to ``(j + 1) k/2`` (j from 0). Always whole. HCAs take the leaf ports in order, so that a node may lie
    on several leaves.
    """

    name = "k-ary"
    summary = "Three-level fat-tree: k pods of k/2 leaves and k/2 spines below (k/2)^2 cores, all of k ports"
    k: int = option(8, "ports of every switch, and number of pods", whole(4, 128, even=True))

    def max_nodes(self, shape: HostShape) -> int:
        return self.k**3 // 4 // shape.hcas

    def limit(self, shape: HostShape) -> str:
        return (
            f"leaf{self.k * self.k // 2} ran out of ports (the {self.k * self.k // 2} leaves have {self.k // 2} ports "
            f"for hosts each, {self.k**3 // 4} in all, and a node has {shape.hcas} HCA{'' if shape.hcas == 1 else 's'})"
        )

    def plug(self, wiring: Wiring) -> None:
        half = self.k // 2
        leaves = wiring.switches("leaf", self.k * half, 0, self.k)
        spines = wiring.switches("spine", self.k * half, 1, self.k)
        cores = wiring.switches("core", half * half, 2, self.k)
        hcas = wiring.shape.hcas
        for host in range(wiring.nodes):
            wiring.host(host, [leaves[port // half] for port in range(host * hcas, (host + 1) * hcas)])
        for pod in range(self.k):
            own = spines[pod * half : (pod + 1) * half]
            wiring.mesh(leaves[pod * half : (pod + 1) * half], own, 1)
            for j, spine in enumerate(own):
                wiring.mesh([spine], cores[j * half : (j + 1) * half], 1)
