"""What each port of a fabric went through: a cable has two ends, and each end sends on one direction and pauses the
other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fauxrdma.fabric.queues.play import LinkResult
from fauxrdma.topology.graph import Topology

__all__ = ["PortResult", "port_results"]


@dataclass(frozen=True, slots=True)
class PortResult:
    """One priority of one port, `port` of `node`, whose cable leads `to` another node; `link` names the direction it
    sends on. `queue_max`: the most that ever waited there to be sent, `ingress_max`: the most of what came in by the
    port that was in the switch. `pauses_sent` and `pauses_received`: how often it paused the other end, and was
    paused. `stalled_ns`: for how long it had something to send that flow control held up. Bytes and ns."""

    link: str
    node: str
    port: int
    to: str
    priority: int
    nbytes: float
    queue_max: float
    ingress_max: float
    pauses_sent: int
    pauses_received: int
    marked: float
    dropped: float
    stalled_ns: float


def port_results(topology: Topology, links: Sequence[LinkResult]) -> list[PortResult]:
    """The ports at both ends of every cable in `links`, by node, port and priority."""
    by_lane = {(result.link, result.priority): result for result in links}
    cables = {key for key in by_lane if topology.links[key[0]].kind == "cable"}
    ends = cables | {(topology.links[link].reverse, priority) for link, priority in cables}
    found = []
    for link, priority in ends:
        cable = topology.links[link]
        out, back = by_lane.get((link, priority)), by_lane.get((cable.reverse, priority))
        found.append(
            PortResult(
                link=cable.name,
                node=cable.src,
                port=cable.src_port,
                to=cable.dst,
                priority=priority,
                nbytes=out.nbytes if out else 0.0,
                queue_max=out.queue_max if out else 0.0,
                ingress_max=back.ingress_max if back else 0.0,
                pauses_sent=back.pauses if back else 0,
                pauses_received=out.pauses if out else 0,
                marked=out.marked if out else 0.0,
                dropped=out.dropped if out else 0.0,
                stalled_ns=out.stalled_ns if out else 0.0,
            )
        )
    return sorted(found, key=lambda port: (port.node, port.port, port.priority))
