"""Small fabrics whose hosts are wider than their cables, and flows by name."""

from __future__ import annotations

from collections.abc import Sequence

from fauxrdma.fabric.queues.play import Flow
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.topology.building import SWITCH_LATENCY_NS, SWITCHING, TopologyBuilder
from fauxrdma.topology.host_shape import HostShape
from fauxrdma.units import Rate

WIDE = HostShape(gpus=1, storage_hcas=0, gpus_per_pcie_switch=1, pcie_rate=Rate.gbps(4000))


def fabric(
    hosts: Sequence[tuple[str, float]],
    trunks: Sequence[tuple[str, str, float]] = (),
    *,
    transport: str = "infiniband",
    length_m: float = 3.0,
    shape: HostShape = WIDE,
    routing: str | None = None,
) -> SubnetManager:
    """Host n on the switch `hosts[n][0]` by a cable of `hosts[n][1]` Gb/s; `trunks` join switches."""
    builder = TopologyBuilder(shape)
    names = dict.fromkeys([name for name, _ in hosts] + [end for a, b, _ in trunks for end in (a, b)])
    for name in names:
        builder.add_switch(name, 0, 64)
    for host, (switch, gbps) in enumerate(hosts):
        builder.add_host(host)
        builder.connect(f"n{host}.hca1", switch, Rate.gbps(gbps), length_m)
    for a, b, gbps in trunks:
        builder.connect(a, b, Rate.gbps(gbps), length_m)
    return SubnetManager(
        builder.build(
            name="test",
            description="",
            hosts=len(hosts),
            transport=transport,
            switching=SWITCHING[transport],
            switch_latency_ns=SWITCH_LATENCY_NS[transport],
            routing=routing,
        )
    )


def flow(
    manager: SubnetManager, source: int, target: int, nbytes: int, *, start_ns: float = 0.0, priority: int | None = None
) -> Flow:
    """From the HCA of host `source` to that of host `target`."""
    return Flow(manager.lid(f"n{source}.hca1"), manager.lid(f"n{target}.hca1"), nbytes, start_ns, priority, source)


def star(count: int, gbps: float = 100.0, transport: str = "infiniband", **more: object) -> SubnetManager:
    """`count` hosts on one switch."""
    return fabric([("leaf1", gbps)] * count, transport=transport, **more)  # type: ignore[arg-type]
