"""Datagrams to a group follow the subnet manager's tree: each cable carries them once, on both clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from test_unreliable import Peer, shout

from fauxrdma.fabric.multicast_tree import MulticastTree
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.fabric.sweep import LivingSubnet
from fauxrdma.ib.enums import IBV_QPT_UD
from fauxrdma.lab.local import LocalLab

GROUP = "ff12::7:7"
MLID = 0xC077
LENGTH = 1000


@pytest.fixture(scope="module", params=["none", "paced"])
def lab(request: pytest.FixtureRequest) -> Iterator[LocalLab]:
    with LocalLab("seed-rail8", nodes=2, gpus=2, clock=request.param, dilation=1000) as running:
        yield running


class Gathering:
    """A sender on n0.hca1 and members on n0.hca2, n1.hca1, n1.hca2 and n1.hca3."""

    MEMBERS = ((0, "hca2"), (1, "hca1"), (1, "hca2"), (1, "hca3"))

    def __init__(self, lab: LocalLab) -> None:
        self.lab = lab
        self.sender = Peer(lab, 0, IBV_QPT_UD)
        self.members = [Peer(lab, node, IBV_QPT_UD, hca) for node, hca in self.MEMBERS]
        for peer in self.members:
            peer.qp.attach_mcast(GROUP, MLID)
        self.lids = {peer.ctx.hca.lid for peer in self.members}

    def send(self, count: int) -> dict[str, int]:
        """Bytes by link that `count` datagrams cause; every member gets each once."""
        self.lab.report(reset=True)
        for _ in range(count):
            for peer in self.members:
                peer.receive(1)
            shout(self.sender, LENGTH, MLID, GROUP)
            self.sender.wait(1)
            for peer in self.members:
                assert [wc.byte_len for wc in peer.wait(1)] == [LENGTH + 40]
                assert peer.cq.poll()[0] == 0
        return {link.name: link.nbytes for link in self.lab.report().links if link.nbytes}

    def predicted(self, manager: SubnetManager, count: int) -> dict[str, int]:
        sent = MulticastTree(manager, self.lids).deliver(self.sender.ctx.hca.lid)
        # Two members on one PCIe switch have their copies cross its uplink one after the other.
        times = Counter(self.lab.topology.links[link].name for link in sent.links)
        return {link: count * LENGTH * copies for link, copies in times.items()}

    def close(self) -> None:
        for peer in (self.sender, *self.members):
            peer.close()


def test_each_cable_of_the_tree_carries_a_datagram_once(lab: LocalLab) -> None:
    gathering = Gathering(lab)
    carried = gathering.send(3)
    assert carried == gathering.predicted(SubnetManager(lab.topology, lab.seed), 3)
    assert carried["n0.hca1->leaf1"] == 3 * LENGTH  # once, for four members
    assert carried["n1.pcie0->n1.mem"] == 2 * 3 * LENGTH  # hca1's copy and hca2's
    gathering.close()


def test_after_a_failure_the_tree_is_another(lab: LocalLab) -> None:
    gathering = Gathering(lab)
    before = gathering.send(1)
    dead = next(name for name in sorted(before) if name.startswith("leaf1->spine"))
    lab.link_down(dead)
    lab.swept()
    try:
        after = gathering.send(2)
    finally:
        lab.link_up(dead)
        lab.swept()
    assert dead not in after
    subnet = LivingSubnet(SubnetManager(lab.topology, lab.seed))
    subnet.link_down(dead, 0)
    while (due := subnet.next_ns()) is not None:
        subnet.poll(due)
    assert after == gathering.predicted(subnet.manager, 2)
    gathering.close()
