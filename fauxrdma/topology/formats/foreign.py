"""A fabric told by a file that is not ours, completed with documented defaults (docs/formats.md lists them).

Hosts of a topology are all alike, those of real fabrics mostly: hosts with another number of HCAs than most (login,
management, storage) are left out, and the remarks say so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fauxrdma.errors import ConfigError
from fauxrdma.topology.building import TopologyBuilder
from fauxrdma.topology.formats.records import Record, Records, take_apart
from fauxrdma.topology.formats.source import ReadFabric, Source
from fauxrdma.topology.graph import HCA_FABRIC_PORT, TIER_NAMES, NodeKind
from fauxrdma.topology.host_shape import HostShape
from fauxrdma.units import Rate

__all__ = [
    "DEFAULT_RATE",
    "HOST_CABLE_M",
    "SPINE_CABLE_M",
    "ForeignCable",
    "ForeignFabric",
    "ForeignSwitch",
    "HcaPort",
    "natural",
    "safe_names",
]

DEFAULT_RATE = Rate.gbps(200)
"""Of a cable whose rate the file does not say: HDR, as in the presets."""

HOST_CABLE_M = 3.0
SPINE_CABLE_M = 20.0
"""Lengths that the file does not say, of cables to hosts and between switches; as in the presets."""

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class HcaPort:
    """One fabric port of a host. Each port counts as an HCA; `order` sorts the ports of a host."""

    host: str
    order: str


@dataclass(slots=True)
class ForeignSwitch:
    """A switch by its `name`, which need not be unique. None is what the file does not say."""

    name: str
    ports: int | None = None
    tier: int | None = None


@dataclass(slots=True)
class ForeignCable:
    """A cable between two ends, each the key of a switch or an HcaPort. None is what the file does not say."""

    a: str | HcaPort
    b: str | HcaPort
    a_port: int | None = None
    b_port: int | None = None
    rate: Rate | None = None
    length_m: float | None = None


@dataclass(slots=True)
class ForeignFabric:
    """What such a file says. `shape` is what it says of the inside of hosts, if it does."""

    name: str
    description: str
    switches: dict[str, ForeignSwitch] = field(default_factory=dict)
    cables: list[ForeignCable] = field(default_factory=list)
    shape: HostShape | None = None
    remarks: list[str] = field(default_factory=list)

    def read(self, source: Source) -> ReadFabric:
        """The topology. Raises ConfigError naming the file where what it says is no fabric."""
        if not any(isinstance(end, HcaPort) for cable in self.cables for end in (cable.a, cable.b)):
            raise ConfigError(f"{source.path}: no host is cabled to a switch in it, so there is no fabric to emulate")
        ports = self._ports_of_hosts()
        remarks = list(self.remarks)
        device: dict[str | HcaPort, str] = {
            port: f"n{host}.hca{i}" for host, own in enumerate(ports.values()) for i, port in enumerate(own, start=1)
        }
        names = {f"n{host}": name for host, name in enumerate(ports)}
        if any(new != name for new, name in names.items()):
            shown = [f"{new} = {name}" for new, name in list(names.items())[:_SHOWN]]
            more = f" and so on, {len(names)} in all" if len(names) > _SHOWN else ""
            remarks.append(f"hosts: {', '.join(shown)}{more}")
        cables = [cable for cable in self.cables if all(isinstance(e, str) or e in device for e in (cable.a, cable.b))]
        tiers = self._tiers(source, cables)
        switch_names = self._switch_names(tiers)
        per_host = len(next(iter(ports.values())))
        shape = self.shape or HostShape(gpus=per_host, storage_hcas=0)
        if shape.hcas != per_host:
            raise ConfigError(f"{source.path}: hosts with {shape.hcas} HCAs have {per_host} cabled ones")
        records = _empty(self.name, self.description, len(ports), shape)
        records.cables = _cables(cables, switch_names | device)
        records.shared = self._switches(tiers, switch_names, records.cables)
        islands = _islands(cables)
        if islands > 1:
            records.fabric["islands"] = islands
            remarks.append(f"the fabric has {islands} parts that no cable joins")
        return ReadFabric(source.topology(records), [*remarks, *self._left_out(ports)])

    def _ports_of_hosts(self) -> dict[str, list[HcaPort]]:
        """The hosts that are taken, in natural order, each with its ports."""
        found = self._all_ports()
        counts = Counter(len(ports) for ports in found.values())
        usual = max(counts, key=lambda count: (counts[count], count))
        if self.shape is not None and self.shape.hcas in counts:
            usual = self.shape.hcas
        return {
            host: sorted(found[host], key=lambda port: natural(port.order))
            for host in sorted(found, key=natural)
            if len(found[host]) == usual
        }

    def _all_ports(self) -> dict[str, list[HcaPort]]:
        found: dict[str, list[HcaPort]] = {}
        for cable in self.cables:
            for end in (cable.a, cable.b):
                if isinstance(end, HcaPort):
                    found.setdefault(end.host, []).append(end)
        return found

    def _left_out(self, taken: dict[str, list[HcaPort]]) -> list[str]:
        usual = len(next(iter(taken.values())))
        out = [
            f"{host} ({len(ports)} HCA{'s' if len(ports) > 1 else ''})"
            for host, ports in self._all_ports().items()
            if host not in taken
        ]
        if not out:
            return []
        more = f" and {len(out) - _SHOWN} more" if len(out) > _SHOWN else ""
        return [f"left out, since most hosts have {usual} cabled HCAs: {', '.join(out[:_SHOWN])}{more}"]

    def _tiers(self, source: Source, cables: Iterable[ForeignCable]) -> dict[str, int]:
        """Tier of every switch: what the file says, else its distance from the nearest switch with hosts."""
        near: dict[str, set[str]] = {key: set() for key in self.switches}
        leaves: set[str] = set()
        for cable in cables:
            for end, other in ((cable.a, cable.b), (cable.b, cable.a)):
                if isinstance(end, str):
                    if isinstance(other, str):
                        near[end].add(other)
                    else:
                        leaves.add(end)
                elif not isinstance(other, str):
                    raise ConfigError(
                        f"{source.path}: a cable joins the hosts {end.host} and {other.host}: hosts are cabled to "
                        "switches here"
                    )
        distance = dict.fromkeys(leaves, 0)
        todo = sorted(leaves)
        for key in todo:
            for other_key in sorted(near[key]):
                if other_key not in distance:
                    distance[other_key] = distance[key] + 1
                    todo.append(other_key)
        return {
            key: switch.tier if switch.tier is not None else distance.get(key, 0)
            for key, switch in self.switches.items()
        }

    def _switch_names(self, tiers: dict[str, int]) -> dict[str | HcaPort, str]:
        """Each switch's own name where it is one and unique, else `leaf1`, `spine1` ... counted in the tier."""
        safe = safe_names({key: switch.name for key, switch in self.switches.items()})
        taken = set(safe.values())
        names: dict[str | HcaPort, str] = {}
        counts: Counter[int] = Counter()
        for key in self.switches:
            tier = tiers[key]
            name = safe.get(key)
            while name is None:
                counts[tier] += 1
                tried = f"{TIER_NAMES[min(tier, len(TIER_NAMES) - 1)]}{counts[tier]}"
                name = None if tried in taken else tried
            taken.add(name)
            names[key] = name
        return names

    def _switches(
        self, tiers: dict[str, int], names: dict[str | HcaPort, str], cables: Iterable[Record]
    ) -> list[Record]:
        used: Counter[str] = Counter()
        for cable in cables:
            for name, port in ((cable["src"], cable["src_port"]), (cable["dst"], cable["dst_port"])):
                used[name] = max(used[name], port)
        index: Counter[int] = Counter()
        records = []
        for key, switch in self.switches.items():
            index[tiers[key]] += 1
            records.append(
                {
                    "name": names[key],
                    "kind": NodeKind.SWITCH.value,
                    "host": None,
                    "index": index[tiers[key]],
                    "tier": tiers[key],
                    "radix": max(switch.ports or 0, used[names[key]], 2),
                }
            )
        return records


def _islands(cables: Sequence[ForeignCable]) -> int:
    """How many parts with hosts there are that no cable joins."""
    part: dict[str, str] = {}

    def of(key: str) -> str:
        while part.setdefault(key, key) != key:
            key = part[key]
        return key

    for cable in cables:
        if isinstance(cable.a, str) and isinstance(cable.b, str):
            part[of(cable.a)] = of(cable.b)
    ends = (end for cable in cables for end in ((cable.a, cable.b), (cable.b, cable.a)))
    return len({of(end) for end, other in ends if isinstance(end, str) and not isinstance(other, str)})


def _empty(name: str, description: str, hosts: int, shape: HostShape) -> Records:
    """Records of that many hosts and nothing else, with the defaults of the builder."""
    builder = TopologyBuilder(shape)
    builder.add_switch("switch", 0, shape.hcas)
    builder.add_host(0)
    for i in range(1, shape.hcas + 1):
        builder.connect(f"n0.hca{i}", "switch", DEFAULT_RATE, 0.0)
    records = take_apart(builder.build(name=name, description=description, hosts=1))
    return Records({**records.fabric, "hosts": hosts}, insides=dict.fromkeys(range(hosts)))


def _cables(cables: Sequence[ForeignCable], names: dict[str | HcaPort, str]) -> list[Record]:
    """Records of the cables. Ports that the file does not say are the lowest free ones, in the order of the file."""
    taken: dict[str, set[int]] = {}
    for cable in cables:
        for end, port in ((cable.a, cable.a_port), (cable.b, cable.b_port)):
            if isinstance(end, str) and port is not None:
                taken.setdefault(end, set()).add(port)

    def port_of(end: str | HcaPort, port: int | None) -> int:
        if not isinstance(end, str):
            return HCA_FABRIC_PORT
        if port is None:
            own = taken.setdefault(end, set())
            port = next(free for free in range(1, len(own) + 2) if free not in own)
            own.add(port)
        return port

    records = []
    for cable in cables:
        to_host = isinstance(cable.a, HcaPort) or isinstance(cable.b, HcaPort)
        length_m = cable.length_m if cable.length_m is not None else HOST_CABLE_M if to_host else SPINE_CABLE_M
        records.append(
            {
                "src": names[cable.a],
                "dst": names[cable.b],
                "src_port": port_of(cable.a, cable.a_port),
                "dst_port": port_of(cable.b, cable.b_port),
                "rate_bps": (cable.rate or DEFAULT_RATE).bits_per_s,
                "length_m": length_m,
                "kind": "cable",
            }
        )
    return records


def natural(text: str) -> list[tuple[int, int, str]]:
    """A sort key that puts node9 before node10."""
    return [
        (0, int(part), "") if part.isdecimal() and part.isascii() else (1, 0, part)
        for part in re.split(r"([0-9]{1,18})", text)
        if part
    ]


def safe_names(names: dict[str, str]) -> dict[str, str]:
    """Names that fabric files allow (letters, digits, - and _, beginning with a letter), for the keys whose name is
    not shared with another."""
    safe = {key: re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") for key, name in names.items()}
    counts = Counter(safe.values())
    return {
        key: name
        for key, name in safe.items()
        if counts[name] == 1 and re.match(r"[A-Za-z]", name) and not re.match(r"n\d+$", name)
    }
