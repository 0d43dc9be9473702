"""Multicast trees beside those of real OpenSM, whose group HCAs have joined by the subnet administrator."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from opensm_multicast import run_multicast
from random_trees import random_tree
from real_opensm import missing
from routing_fabrics import FABRICS

from fauxrdma.fabric.multicast_tree import MulticastTree
from fauxrdma.fabric.subnet import SubnetManager

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"OpenSM is the yardstick: {missing()}")

TREES = {
    "three-tier": FABRICS["three-tier"],
    "ring8": FABRICS["ring8"],
    "seed-rail8-5": FABRICS["seed-rail8-5"],
    "beside-spines": random_tree(1, "beside-spines"),
    "cable-missing": random_tree(2, "cable-missing"),
    "deeper": random_tree(3, "deeper"),
}


@pytest.mark.parametrize(("name", "engine"), [*((name, "minhop") for name in TREES), ("three-tier", "ftree")])
def test_every_switch_sends_the_group_out_of_the_same_ports(name: str, engine: str, tmp_path: Path) -> None:
    manager = SubnetManager(TREES[name], engine=engine)
    lids = [end.lid for end in manager.routes.graph.endpoints]
    members = sorted(random.Random(name).sample(lids, 5))
    assert MulticastTree(manager, members).masks == run_multicast(TREES[name], engine, members, tmp_path)
