"""A fabric drawn in plain text: the tiers as rows of boxes, the cables between them, and who is on which leaf.

::

    spine    [spine1] [spine2]
             | 5 x 200 Gb/s between each of spine1-spine2 and each of leaf1-leaf8
    leaf     [leaf1] [leaf2] [leaf3] [leaf4] [leaf5] [leaf6] [leaf7] [leaf8]
    hosts    leaf1: n0-n3.hca1, n0.hca9
             leaf2: n0-n3.hca2, n1.hca9
             ...
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict

from fauxrdma.topology.graph import TIER_NAMES, NodeKind, Topology
from fauxrdma.units import Rate

__all__ = ["draw", "runs"]

_Bundle = tuple[int, Rate]


def draw(topology: Topology, width: int = 100) -> str:
    """The drawing, no line longer than `width` where names allow it. Ends without a newline."""
    tiers = sorted({node.tier or 0 for node in topology.switches()}, reverse=True)
    lines: list[str] = []
    for tier in tiers:
        names = [node.name for node in topology.switches() if node.tier == tier]
        label = TIER_NAMES[tier] if tier < len(TIER_NAMES) else f"tier {tier}"
        lines += _boxes(label, names, width)
        lines += [f"{'':8} | {text}" for text in _trunks(topology, tier)]
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
        sources = list(dict.fromkeys(src for src, _ in pairs))
        targets = list(dict.fromkeys(dst for _, dst in pairs))
        if len(pairs) == len(sources) * len(targets):
            each = "each of " if len(sources) > 1 else ""
            lines.append(f"{cables} between {each}{runs(sources)} and {each and 'each of '}{runs(targets)}")
        else:
            lines += [f"{cables} between {src} and {dst}" for src, dst in pairs]
    return lines


def _hosts(topology: Topology, width: int) -> list[str]:
    on_leaf: dict[str, list[str]] = defaultdict(list)
    for hca in topology.hcas():
        on_leaf[topology.fabric_link(hca).dst].append(hca.name)
    lines: list[str] = []
    for switch in topology.switches():
        if switch.name in on_leaf:
            text = f"{switch.name}: {_hca_runs(on_leaf[switch.name])}"
            first = f"{'' if lines else 'hosts':8} "
            lines += textwrap.wrap(
                text, width, initial_indent=first, subsequent_indent=" " * 11, break_long_words=False,
                break_on_hyphens=False,
            )  # fmt: skip
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


def runs(names: list[str]) -> str:
    """Names that count up, told as ranges: `leaf1 leaf2 leaf3 leaf7` becomes `leaf1-leaf3,leaf7`."""
    out: list[list[str]] = []
    previous: tuple[str, int] | None = None
    for name in names:
        match = re.match(r"^(.*?)(\d+)$", name)
        current = (match.group(1), int(match.group(2))) if match is not None else None
        if previous is not None and current == (previous[0], previous[1] + 1):
            out[-1][1:] = [name]
        else:
            out.append([name])
        previous = current
    return ",".join("-".join(part) for part in out)
