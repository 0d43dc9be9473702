"""`fauxrdma plan`: which algorithm a fabric makes the fastest, by size; or one plan, message by message."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fauxrdma.cli.options import (
    FabricArgument,
    Format,
    FormatOption,
    GpusOption,
    NodesOption,
    OnNodesOption,
    PlacementOption,
    RoutingOption,
    SeedOption,
)
from fauxrdma.errors import ConfigError

__all__ = ["plan"]

_MOST_SIZES = 64


def plan(
    operation: Annotated[
        str,
        typer.Argument(
            help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast or reduce.", show_default=False
        ),
    ],
    fabric: FabricArgument,
    nodes: NodesOption = 2,
    gpus: GpusOption = 1,
    first: Annotated[str, typer.Option("--min", "-b", metavar="SIZE", help="Smallest size.")] = "8",
    last: Annotated[str, typer.Option("--max", "-e", metavar="SIZE", help="Largest size.")] = "128M",
    factor: Annotated[int, typer.Option("--factor", "-f", min=2, help="From one size to the next.")] = 2,
    show: Annotated[
        bool, typer.Option("--show", help="One plan instead: its messages, rails crossed, bytes per link.")
    ] = False,
    size: Annotated[str, typer.Option("--size", metavar="SIZE", help="The size that --show shows.")] = "1M",
    algorithms: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm",
            metavar="NAME|file:PATH",
            help="Compare only these; may be repeated. A file (docs/plans.md) alone is compared with all. --show shows "
            "the fastest.  [default: all]",
            show_default=False,
        ),
    ] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, help="With --show: the steps of this rank, too.", show_default=False)
    ] = None,
    intra_node: Annotated[
        str,
        typer.Option("--intra-node", metavar="hca|nvlink", help="What ranks of one node talk over."),
    ] = "nvlink",
    channels: Annotated[
        int, typer.Option("--channels", min=1, max=32, help="Over how many channels rings and trees are cut.")
    ] = 1,
    cross_nic: Annotated[
        int | None,
        typer.Option(
            "--cross-nic",
            min=0,
            max=2,
            help="NCCL_CROSS_NIC: 0 the same HCA along a ring, 1 any, 2 the same if possible.  [default: by rank; "
            "2 with several channels]",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="flows|queues",
            help="flows: links are shared fairly, as under clock paced. queues: buffers, credits or PAUSE, DCQCN "
            "(docs/queues.md); slower.",
        ),
    ] = "flows",
    placement: PlacementOption = "block",
    on_nodes: OnNodesOption = None,
    routing: RoutingOption = None,
    seed: SeedOption = 0,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.svg", help="Draw it: times over sizes, or with --show the messages."),
    ] = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Predict what collectives take on a fabric, without running anything.

    Every algorithm's plan is played over the fabric's links in virtual time, by the model that the paced clock follows;
    bytes per link are exact. Sizes count as in nccl-tests: the whole buffer, for all_gather and all_to_all the larger
    side; K, M and G are powers of 1024.

    \b
    Examples:
      fauxrdma plan all_reduce seed-rail8 --nodes 2 --gpus 4 -b 8 -e 128M -f 2
      fauxrdma plan all_reduce superpod --nodes 4 --gpus 8 --intra-node nvlink --plot choice.svg
      fauxrdma plan all_to_all seed-rail8 --gpus 4 --show --algorithm direct --size 64K --plot messages.svg
      fauxrdma plan all_reduce fat-tree --show --algorithm ring --rank 0 --format json
      fauxrdma plan all_reduce seed-rail8 --gpus 4 --placement cyclic -b 1M -e 64M
      fauxrdma plan all_to_all fat-tree --nodes 8 --model queues -b 64K -e 4M -f 4
      fauxrdma plan all_reduce seed-rail8 --nodes 4 --gpus 8 --intra-node nvlink --channels 8 --cross-nic 0 -b 64M
      fauxrdma plan all_reduce fat-tree --algorithm file:examples/plans/ring_all_reduce.yaml
    """
    from fauxrdma.cli.plan_output import print_selection, print_shown
    from fauxrdma.collectives.candidates import SLOT_BYTES
    from fauxrdma.collectives.channels import PREFER_SAME_NIC, channel_routes
    from fauxrdma.collectives.rank_paths import RankPaths
    from fauxrdma.collectives.request import FILE_PREFIX
    from fauxrdma.collectives.selector import Selector
    from fauxrdma.communicator.channel_set import channel_slot_bytes
    from fauxrdma.fabric.queues.settings import QueueSettings
    from fauxrdma.fabric.subnet import SubnetManager
    from fauxrdma.topology.loading import load_topology
    from fauxrdma.topology.placement import choose_placement
    from fauxrdma.topology.placement.choosing import parse_nodes
    from fauxrdma.units import parse_byte_count

    topology = load_topology(fabric, nodes, gpus).with_routing(routing)
    own_nodes = parse_nodes(on_nodes) if on_nodes is not None else None
    places = choose_placement(placement, topology, gpus, on_nodes=own_nodes, seed=seed).places
    manager = SubnetManager(topology, seed)
    if model not in ("flows", "queues"):
        raise ConfigError(f"--model {model!r}: it is flows or queues")
    paths = RankPaths(manager, places, intra_node, QueueSettings.of(manager.transport) if model == "queues" else None)
    selector = Selector(paths)
    if channels > 1 or cross_nic is not None:
        nodes_of, hcas = selector.ranks.nodes, [place.hca for place in places]
        rails = selector.ranks.rails or ()
        policy = PREFER_SAME_NIC if cross_nic is None else cross_nic
        routes = channel_routes(nodes_of, hcas, rails, channels, policy)
        slots = channel_slot_bytes(SLOT_BYTES, channels)
        selector = Selector(paths, routes=routes, channel_slot_bytes=slots)
    if rank is not None and rank >= len(places):
        raise ConfigError(f"--rank {rank}: there are ranks 0..{len(places) - 1}")
    named = algorithms or []
    if not show:
        if rank is not None:
            raise ConfigError("--rank goes with --show")
        if all(name.startswith(FILE_PREFIX) for name in named):
            named = [*selector.algorithms(operation), *named]
        print_selection(selector.table(operation, _sizes(first, last, factor), named), selector, plot, format_)
        return
    nbytes = parse_byte_count(size)
    print_shown(selector, selector.compare(operation, nbytes, named or None), rank, plot, format_)


def _sizes(first: str, last: str, factor: int) -> list[int]:
    from fauxrdma.units import parse_byte_count

    size, end = parse_byte_count(first), parse_byte_count(last)
    if not 1 <= size <= end:
        raise ConfigError(f"sizes go from -b to -e: {first} to {last} is none")
    sizes = []
    while size <= end:
        sizes.append(size)
        size *= factor
    if len(sizes) > _MOST_SIZES:
        raise ConfigError(f"{len(sizes)} sizes are too many: raise -f")
    return sizes
