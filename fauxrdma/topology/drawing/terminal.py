"""A fabric drawn in plain text: the tiers as rows of boxes, the cables between them, and who is on which leaf.

What would fill more than a screen is folded: rows of many switches, cables between them, hosts on many leaves.

::

    spine    [spine1] [spine2]
             | 5 x 200 Gb/s between each of spine1-spine2 and each of leaf1-leaf8
    leaf     [leaf1] [leaf2] [leaf3] [leaf4] [leaf5] [leaf6] [leaf7] [leaf8]
    hosts    leaf1: n0-n3.hca1, n0.hca9
             leaf2: n0-n3.hca2, n1.hca9
             ...
"""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict

from fauxrdma.topology.drawing.names import runs
from fauxrdma.topology.graph import TIER_NAMES, NodeKind, Topology
from fauxrdma.topology.rails import rails_of
from fauxrdma.units import Rate

__all__ = ["draw", "runs"]

_Bundle = tuple[int, Rate]

_MOST_IN_ROW = 40
"""Switches of a tier that are drawn one by one."""
_MOST_LINES = 40
"""Lines about the cables of a tier, and about the hosts; what is more is counted."""


def draw(topology: Topology, width: int = 100) -> str:
    """The drawing, no line longer than `width` where names allow it. Ends without a newline."""
    tiers = sorted({node.tier or 0 for node in topology.switches()}, reverse=True)
    lines: list[str] = []
    for tier in tiers:
        names = [node.name for node in topology.switches() if node.tier == tier]
        label = TIER_NAMES[tier] if tier < len(TIER_NAMES) else f"tier {tier}"
        lines += _boxes(label, names if len(names) <= _MOST_IN_ROW else [f"{runs(names)}: {len(names)}"], width)
        lines += [f"{'':8} | {text}" for text in _few(_trunks(topology, tier), "more like these")]
    lines += _rails(topology)
    lines += _hosts(topology, width)
    return "\n".join(lines)


def _boxes(label: str, names: list[str], width: int) -> list[str]:
    lines = []
    row = f"{label:8}"
    for name in names:
        box = f" [{name}]"
        if len(row) + len(box) > width and row.strip() not in ("", label):
            lines.append(row)
            row = f"{'':8}"
        row += box
    return [*lines, row]


def _trunks(topology: Topology, tier: int) -> list[str]:
    """The cables from the switches of `tier` to lower tiers and among themselves, equal ones told together."""
    peers: dict[tuple[str, str], Counter[Rate]] = defaultdict(Counter)
    for link in topology.links:
        src, dst = topology.nodes[link.src], topology.nodes[link.dst]
        if src.kind is NodeKind.SWITCH and dst.kind is NodeKind.SWITCH and src.tier == tier:
            below = (dst.tier or 0) < tier
            beside = dst.tier == tier and src.index < dst.index
            if below or beside:
                peers[link.src, link.dst][link.rate] += 1
    alike: dict[tuple[_Bundle, ...], list[tuple[str, str]]] = defaultdict(list)
    for pair, rates in peers.items():
        alike[tuple((count, rate) for rate, count in sorted(rates.items()))].append(pair)
    lines = []
    for bundles, pairs in alike.items():
        cables = " + ".join(f"{count} x {rate}" for count, rate in bundles)
        targets_of: dict[str, list[str]] = defaultdict(list)
        for one, other in pairs:
            targets_of[one].append(other)
        sources_of: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for one, found in targets_of.items():
            sources_of[tuple(found)].append(one)
        for targets, sources in sources_of.items():
            each = "each of " if len(sources) > 1 else ""
            lines.append(f"{cables} between {each}{runs(sources)} and {each and 'each of '}{runs(list(targets))}")
    return lines


def _few(lines: list[str], what: str) -> list[str]:
    if len(lines) <= _MOST_LINES:
        return lines
    return [*lines[: _MOST_LINES - 1], f"... and {len(lines) - _MOST_LINES + 1} {what}"]


def _rails(topology: Topology) -> list[str]:
    """Which HCAs make a rail, where that is not plain to see: rails of several leaves, or of several HCAs."""
    hcas: dict[int, dict[str, None]] = defaultdict(dict)
    leaves: dict[int, dict[str, None]] = defaultdict(dict)
    for name, rail in rails_of(topology).items():
        hcas[rail][name.partition(".")[2]] = None
        leaves[rail][topology.fabric_link(topology.nodes[name]).dst] = None
    if all(len(found) == 1 for found in (*hcas.values(), *leaves.values())):
        return []
    told = [f"{rail}: {_few_names(hcas[rail])} on {_few_names(leaves[rail])}" for rail in sorted(hcas)]
    return [f"{'' if number else 'rails':8} {text}" for number, text in enumerate(_few(told, "more"))]


def _few_names(names: dict[str, None]) -> str:
    found = list(names)
    text = runs(found)
    return text if len(text) <= 60 else f"{len(found)} from {found[0]} to {found[-1]}"


def _hosts(topology: Topology, width: int) -> list[str]:
    on_leaf: dict[str, list[str]] = defaultdict(list)
    for hca in topology.hcas():
        on_leaf[topology.fabric_link(hca).dst].append(hca.name)
    lines: list[str] = []
    leaves = [switch.name for switch in topology.switches() if switch.name in on_leaf]
    shown = leaves if len(leaves) <= _MOST_LINES else leaves[: _MOST_LINES - 1]
    for name in shown:
        text = f"{name}: {_hca_runs(on_leaf[name])}"
        first = f"{'' if lines else 'hosts':8} "
        lines += textwrap.wrap(
            text, width, initial_indent=first, subsequent_indent=" " * 11, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
    rest = leaves[len(shown) :]
    if rest:
        cabled = sum(len(on_leaf[name]) for name in rest)
        lines.append(f"{'':8} ... {cabled} more HCAs on {len(rest)} more leaves, up to {rest[-1]}")
    return lines


def _hca_runs(names: list[str]) -> str:
    """`n0.hca1 n1.hca1 n0.hca9` as `n0-n1.hca1, n0.hca9`; `n0.hca1 n0.hca3` as `n0.{hca1,hca3}`."""
    hosts_of: dict[str, list[str]] = defaultdict(list)
    for name in names:
        host, _, hca = name.partition(".")
        hosts_of[hca].append(host)
    hcas_of: dict[str, list[str]] = defaultdict(list)
    for hca, hosts in hosts_of.items():
        hcas_of[runs(hosts)].append(hca)
    return ", ".join(f"{_braced(hosts)}.{_braced(runs(hcas))}" for hosts, hcas in hcas_of.items())


def _braced(text: str) -> str:
    return f"{{{text}}}" if "," in text else text
