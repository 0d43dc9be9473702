"""Small fat-trees drawn by lot, and spoilt in the ways that trees are in the field: hosts and cables that are missing,
parallel cables, a removed spine, cables within a tier, a leaf that hangs deeper than the others."""

from __future__ import annotations

import random
from itertools import pairwise

from routing_fabrics import cabled

from fauxrdma.topology.graph import Topology

KINDS = ("whole", "shuffled", "no-hosts", "cable-missing", "spine-missing", "beside-spines", "beside-leaves", "deeper")


def random_tree(seed: int, kind: str) -> Topology:
    """Two or three tiers, one of KINDS. All switches are joined: what would not be is left as it was."""
    lot = random.Random(f"{kind}-{seed}")
    tiers = _tiers(lot)
    trunks = [
        pair
        for (lower, upper) in pairwise(tiers)
        for pod in range(len(lower))
        for a in lower[pod]
        for b in upper[pod % len(upper)]
        for pair in [(a, b)] * lot.choice([1, 1, 2])
    ]
    if kind != "shuffled" and lot.random() < 0.7:  # groups of one width: as OpenSM wants them
        trunks = list(dict.fromkeys(trunks)) * lot.choice([1, 1, 2, 3])
    switches = {name: tier for tier, pods in enumerate(tiers) for pod in pods for name in pod}
    leaves = [name for name, tier in switches.items() if tier == 0]
    hosts = [leaf for leaf in leaves for _ in range(lot.choice([3, 3, 2]) if lot.random() < 0.5 else 3)]
    spoilt_switches, spoilt_trunks, spoilt_hosts = dict(switches), list(trunks), list(hosts)
    _spoil(lot, kind, spoilt_switches, spoilt_trunks, spoilt_hosts)
    if spoilt_hosts and _joined(spoilt_switches, spoilt_trunks):
        switches, trunks, hosts = spoilt_switches, spoilt_trunks, spoilt_hosts
    return cabled(f"{kind}-{seed}", switches, trunks, hosts)


def _tiers(lot: random.Random) -> list[list[list[str]]]:
    """Switch names by tier and pod."""
    if lot.random() < 0.6:
        leaves, spines = lot.randint(2, 6), lot.randint(2, 4)
        return [[[f"leaf{n + 1}" for n in range(leaves)]], [[f"spine{n + 1}" for n in range(spines)]]]
    pods, leaves, spines, cores = lot.randint(2, 3), lot.randint(1, 3), lot.randint(2, 3), lot.randint(2, 3)
    return [
        [[f"leaf{pod * leaves + n + 1}" for n in range(leaves)] for pod in range(pods)],
        [[f"spine{pod * spines + n + 1}" for n in range(spines)] for pod in range(pods)],
        [[f"core{n + 1}" for n in range(cores)]],
    ]


def _spoil(
    lot: random.Random, kind: str, switches: dict[str, int], trunks: list[tuple[str, str]], hosts: list[str]
) -> None:
    leaves = [name for name, tier in switches.items() if tier == 0]
    above = [name for name, tier in switches.items() if tier == 1]
    if kind == "shuffled":
        lot.shuffle(trunks)
        lot.shuffle(hosts)
    elif kind == "no-hosts":
        empty = set(lot.sample(leaves, lot.randint(1, max(1, len(leaves) - 2))))
        hosts[:] = [leaf for leaf in hosts if leaf not in empty]
    elif kind == "cable-missing":
        trunks.pop(lot.randrange(len(trunks)))
    elif kind == "spine-missing":
        gone = lot.choice(above)
        del switches[gone]
        trunks[:] = [pair for pair in trunks if gone not in pair]
    elif kind == "beside-spines":
        trunks += [tuple[str, str](lot.sample(above, 2)) for _ in range(lot.randint(1, 3))]
    elif kind == "beside-leaves":
        trunks += [tuple[str, str](lot.sample(leaves, 2)) for _ in range(lot.randint(1, 3))]
    elif kind == "deeper":
        switches["deep1"] = 0
        trunks.append((lot.choice(leaves), "deep1"))
        hosts += ["deep1"] * lot.randint(0, 2)


def _joined(switches: dict[str, int], trunks: list[tuple[str, str]]) -> bool:
    seen = {next(iter(switches))}
    for _ in switches:
        seen |= {name for pair in trunks if seen & set(pair) for name in pair}
    return len(seen) == len(switches)
