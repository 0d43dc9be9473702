"""`fauxrdma plan`: which algorithm a fabric makes the fastest, by size; or one plan, message by message."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fauxrdma.cli.options import Format, FormatOption, GpusOption, NodesOption, RoutingOption, SeedOption
from fauxrdma.errors import ConfigError

if TYPE_CHECKING:
    from fauxrdma.collectives.selector import Selector

__all__ = ["plan"]

_MOST_SIZES = 64


def plan(
    operation: Annotated[
        str,
        typer.Argument(
            help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast or reduce.", show_default=False
        ),
    ],
    fabric: Annotated[
        str, typer.Argument(help="A preset (see `fauxrdma topo list`) or a YAML file.", show_default=False)
    ],
    nodes: NodesOption = 2,
    gpus: GpusOption = 1,
    first: Annotated[str, typer.Option("--min", "-b", metavar="SIZE", help="Smallest size.")] = "8",
    last: Annotated[str, typer.Option("--max", "-e", metavar="SIZE", help="Largest size.")] = "128M",
    factor: Annotated[int, typer.Option("--factor", "-f", min=2, help="From one size to the next.")] = 2,
    show: Annotated[
        bool, typer.Option("--show", help="One plan instead: its messages, rails crossed, bytes per link.")
    ] = False,
    size: Annotated[str, typer.Option("--size", metavar="SIZE", help="The size that --show shows.")] = "1M",
    algorithm: Annotated[
        str, typer.Option("--algorithm", metavar="NAME|auto", help="What --show shows; auto is the fastest.")
    ] = "auto",
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, help="With --show: the steps of this rank, too.", show_default=False)
    ] = None,
    intra_node: Annotated[
        str,
        typer.Option("--intra-node", metavar="hca|nvlink", help="What ranks of one node talk over."),
    ] = "hca",
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
    """
    from fauxrdma.cli.plan_output import print_selection, print_shown
    from fauxrdma.collectives.rank_paths import RankPaths
    from fauxrdma.collectives.selector import Selector
    from fauxrdma.fabric.subnet import SubnetManager
    from fauxrdma.topology.loading import load_topology
    from fauxrdma.topology.rank_places import block_places
    from fauxrdma.units import parse_byte_count

    topology = load_topology(fabric, nodes, gpus).with_routing(routing)
    places = block_places(topology, nodes, gpus)
    selector = Selector(RankPaths(SubnetManager(topology, seed), places, intra_node))
    if rank is not None and rank >= len(places):
        raise ConfigError(f"--rank {rank}: there are ranks 0..{len(places) - 1}")
    if show:
        print_shown(selector, operation, _named(selector, operation, algorithm, parse_byte_count(size)),
                    parse_byte_count(size), rank, plot, format_)  # fmt: skip
        return
    if algorithm != "auto" or rank is not None:
        raise ConfigError("--algorithm and --rank go with --show; without it all algorithms are compared")
    print_selection(selector.table(operation, _sizes(first, last, factor)), selector, plot, format_)


def _named(selector: Selector, operation: str, algorithm: str, nbytes: int) -> str:
    return selector.compare(operation, nbytes).algorithm if algorithm == "auto" else algorithm


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
