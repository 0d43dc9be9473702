"""Plugging a fabric together from the form of its file, and finding what does not fit together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fauxrdma.errors import ConfigError
from fauxrdma.topology.building import SWITCH_LATENCY_NS, SWITCHING, PortRefused, PortsExhausted, TopologyBuilder
from fauxrdma.topology.complaints import did_you_mean
from fauxrdma.topology.graph import (
    INFINIBAND,
    ROUTING_ENGINES,
    TIER_NAMES,
    NodeKind,
    Topology,
)
from fauxrdma.topology.host_shape import GPUS_PER_HCA, HostShape
from fauxrdma.topology.patterns import (
    End,
    PatternError,
    expand_name,
    hca_end,
    is_hca_pattern,
    pairs,
    slip_in_range,
    switch_end,
)
from fauxrdma.topology.routing_choice import parse_routing
from fauxrdma.topology.schema import CableForm, FabricForm
from fauxrdma.topology.yaml_document import YamlDocument
from fauxrdma.topology.yaml_scan import Loc, Problem
from fauxrdma.units import Rate

__all__ = ["FileAssembly"]

MAX_ADDRESSES = 0xBFFF
"""Unicast LIDs of a subnet (IBTA vol. 1, 4.1.3): one per HCA and one per switch."""

FASTEST_CABLE = Rate.gbps(800)
"""XDR, the fastest there is at the time of writing."""

_SWITCH_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_DEVICE_NAME = re.compile(r"n\d+\..*|mem|gpu\d+|pcie\d+")


class FileAssembly:
    """Plugs a fabric together from its form, collecting what does not fit."""

    def __init__(self, document: YamlDocument, form: FabricForm, hosts: int) -> None:
        self._document = document
        self._form = form
        self._hosts = hosts
        self._problems: list[Problem] = []
        self._shape = self._host_shape()
        self._hcas = self._shape.hcas
        self._builder = TopologyBuilder(self._shape)
        self._declared: dict[str, str] = {}
        """For each switch, the key that stands for it."""
        self._cabled: dict[str, int] = {}
        """For each HCA, the number of the cable entry that it hangs on."""
        self._in_use: set[str] = set()

    def problems(self) -> list[Problem]:
        """Everything wrong, in order of position."""
        self._assemble()
        if not self._problems:
            self._check_reachability()
        return sorted(self._problems)

    def warnings(self) -> list[Problem]:
        """What looks like a slip though it can be built; to be asked after `problems`."""
        found = []
        for number, cable in enumerate(self._form.cables):
            if cable.rate > FASTEST_CABLE:
                meant = Rate(cable.rate.bits_per_s // 8)
                hint = f" (did you mean {meant.in_gbps:g}Gbps?)" if meant <= FASTEST_CABLE else ""
                found.append(
                    self._document.problem(
                        ("cables", number, "rate"), f"{cable.rate} is faster than any cable ({FASTEST_CABLE}){hint}"
                    )
                )
        idle = [name for name in self._declared if name not in self._in_use]
        for name in idle[:1]:
            more = _and_others(idle)
            found.append(
                self._document.problem(("switches", self._declared[name]), f"{name} has no cable{more}", key=True)
            )
        return sorted(found)

    def topology(self) -> Topology:
        """The finished topology; the form must be free of problems."""
        self._assemble()
        form = self._form
        return self._builder.build(
            name=form.name,
            description=form.description,
            hosts=self._hosts,
            switch_latency_ns=SWITCH_LATENCY_NS[form.transport] if form.switch_latency is None else form.switch_latency,
            switching=form.switching or SWITCHING[form.transport],
            mtu=form.mtu,
            transport=form.transport,
            routing=form.routing,
            islands=len(self._islands()),
            routed=form.routed,
            compute=form.compute,
        )

    def _complain(self, loc: Loc, message: str, *, key: bool = False) -> None:
        self._problems.append(self._document.problem(loc, message, key=key))

    def _assemble(self) -> None:
        form = self._form
        if self._problems:  # of the hosts
            return
        engines = ROUTING_ENGINES[form.transport]
        if form.routing is not None and form.routing.partition(":")[0] not in engines:
            self._complain(
                ("routing",), f"{form.routing} is not for {form.transport}: it is one of {', '.join(engines)}"
            )
        for key in form.switches:
            self._add_switches(key)
        if form.routed is not None and form.transport == INFINIBAND:
            self._complain(("routed",), f"routed says where IP subnets end, and {INFINIBAND} has none")
        elif form.routed is not None and form.routed not in {switch.tier for switch in form.switches.values()}:
            self._complain(("routed",), f"no switch has the tier {form.routed}")
        if form.routing is not None:
            try:
                parse_routing(form.routing).check_roots(self._declared)
            except ConfigError as error:
                self._complain(("routing",), str(error))
        addresses = self._hosts * self._hcas + len(self._declared)
        if addresses > MAX_ADDRESSES:
            self._complain(
                ("hosts", "count"),
                f"{self._hosts} hosts of {self._hcas} HCAs and {len(self._declared)} switches need {addresses} LIDs, a "
                f"subnet has {MAX_ADDRESSES}: have fewer hosts",
            )
            return
        for host in range(self._hosts):
            self._builder.add_host(host)
        for number, cable in enumerate(form.cables):
            self._add_cable(number, cable)

    def _host_shape(self) -> HostShape:
        """The inside of every host; the usual one after complaining."""
        hosts = self._form.hosts
        if hosts.gpus_per_hca and hosts.gpus % hosts.gpus_per_hca:
            fits = max(ratio for ratio in GPUS_PER_HCA if ratio and hosts.gpus % ratio == 0)
            self._complain(
                ("hosts", "gpus_per_hca"),
                f"{hosts.gpus} GPUs cannot share HCAs {hosts.gpus_per_hca} at a time: one HCA would get fewer "
                f"(did you mean {fits}?)",
            )
        elif hosts.gpus_per_hca == 0 and hosts.storage_hcas == 0:
            self._complain(
                ("hosts", "gpus_per_hca"), "a host needs an HCA: with gpus_per_hca 0, have storage_hcas: 1 or more"
            )
        elif hosts.nvlink_rate is not None and hosts.nvswitches == 0:
            self._complain(("hosts", "nvlink_rate"), "NVLink needs switches: add nvswitches: 4, or leave out both")
        elif hosts.nvlink_rate is None and hosts.nvswitches:
            self._complain(
                ("hosts", "nvswitches"), "NVSwitches need a rate: add nvlink_rate: 450GBps, or leave out both"
            )
        else:
            return HostShape(
                gpus=hosts.gpus,
                gpus_per_hca=hosts.gpus_per_hca,
                storage_hcas=hosts.storage_hcas,
                gpus_per_pcie_switch=hosts.gpus_per_pcie_switch,
                pcie_rate=hosts.pcie_rate,
                nvlink_rate=hosts.nvlink_rate,
                nvswitches=hosts.nvswitches,
                gpudirect=hosts.gpudirect,
            )
        return HostShape()

    def _add_switches(self, key: str) -> None:
        switch = self._form.switches[key]
        try:
            names = expand_name(key)
        except PatternError as error:
            self._complain(("switches", key), str(error), key=True)
            return
        for name in names:
            if not _SWITCH_NAME.fullmatch(name):
                slip = slip_in_range(key)
                hint = f" (did you mean {slip}?)" if slip else ""
                self._complain(
                    ("switches", key),
                    f"{name[:60]!r} is not a switch name: up to 40 letters, digits, - and _, beginning with a letter"
                    f"{hint}",
                    key=True,
                )
                return
            if name in self._declared:
                first = self._document.problem(("switches", self._declared[name]), "", key=True).line
                self._complain(("switches", key), f"there is a switch {name} already (line {first})", key=True)
                return
            self._declared[name] = key
            self._builder.add_switch(name, TIER_NAMES.index(switch.tier), switch.ports)

    # -- cables

    def _add_cable(self, number: int, cable: CableForm) -> None:
        is_hca = [is_hca_pattern(cable.source), is_hca_pattern(cable.target)]
        source, target = self._end(number, "from", cable.source), self._end(number, "to", cable.target)
        if source is None or target is None:
            return
        if all(is_hca):
            self._complain(
                ("cables", number, "to"),
                f"{cable.target} is an HCA too: an HCA is cabled to a switch, as to: {next(iter(self._declared))}",
            )
            return
        if any(is_hca) and cable.count > 1:
            self._complain(
                ("cables", number, "count"), "an HCA has one port: 'count' is for cables between switches, remove it"
            )
            return
        hca_key = "from" if is_hca[0] else "to" if is_hca[1] else None
        chosen = next((key for key in ("from_port", "to_port") if getattr(cable, key) is not None), None)
        if chosen is not None and (cable.count > 1 or len([*source.names]) > 1 or len([*target.names]) > 1):
            self._complain(
                ("cables", number, chosen),
                f"{chosen!r} is for one cable: write one entry for each cable, or leave it out",
            )
            return
        try:
            for one, other in pairs(source, target, mesh=cable.join == "mesh"):
                hca = {"from": one, "to": other, None: None}[hca_key]
                if not self._fits(number, hca, hca_key, one, other):
                    return
                for _ in range(cable.count):
                    if not self._plug(number, one, other, cable):
                        return
        except PatternError as error:
            self._complain(("cables", number, "to"), str(error))

    def _fits(self, number: int, hca: str | None, hca_key: str | None, one: str, other: str) -> bool:
        if one == other:
            self._complain(("cables", number, "to"), f"a cable from {one} to itself: name the switch at the other end")
            return False
        if hca is None or hca_key is None:
            return True
        if hca in self._cabled:
            first = self._document.problem(("cables", self._cabled[hca]), "").line
            self._complain(
                ("cables", number, hca_key), f"{hca} already has a cable (line {first}): an HCA has one port, drop one"
            )
            return False
        self._cabled[hca] = number
        return True

    def _plug(self, number: int, source: str, target: str, cable: CableForm) -> bool:
        try:
            self._builder.connect(source, target, cable.rate, cable.length, ports=(cable.from_port, cable.to_port))
        except PortRefused as refused:
            key = "from_port" if refused.node == source else "to_port"
            self._complain(("cables", number, key), str(refused))
            return False
        except PortsExhausted as full:
            self._complain(
                ("cables", number),
                f"{full.switch} has {full.radix} ports and all are taken: no port is left for this cable "
                f"({source} to {target}); give the switch more 'ports' or plug in less",
            )
            return False
        self._in_use.update((source, target))
        return True

    def _end(self, number: int, key: str, text: str) -> End | None:
        """The nodes that one end of a cable names, or None after complaining. Hosts that were left out name none."""
        loc = ("cables", number, key)
        try:
            if is_hca_pattern(text):
                return self._hca_end(loc, text)
            return self._switch_end(loc, text)
        except PatternError as error:
            self._complain(loc, str(error))
        return None

    def _hca_end(self, loc: Loc, text: str) -> End | None:
        end = hca_end(text, range(self._form.hosts.count), self._hcas)
        for name in end.names:
            host, index = (int(digits) for digits in re.findall(r"\d+", name))
            if host >= self._form.hosts.count:
                last = self._form.hosts.count - 1
                self._complain(loc, f"there is no host n{host}: hosts are n0 to n{last} (count them from 0)")
                return None
            if not 1 <= index <= self._hcas:
                self._complain(loc, f"hosts have hca1 to hca{self._hcas}, not hca{index} (count them from 1)")
                return None
        present = tuple(tuple(name for name in step if name in self._builder.nodes) for step in end.steps)
        return End(present, end.in_step)

    def _switch_end(self, loc: Loc, text: str) -> End | None:
        end = switch_end(text, self._declared)
        missing = next((name for name in end.names if name not in self._declared), None)
        if missing is None and any(end.steps):
            return end
        if text in self._form.switches:  # its name was refused
            return None
        shown = text[:60] if missing is None else missing[:60]
        what = f"there is no {shown!r} to plug a cable into"
        if _DEVICE_NAME.fullmatch(shown) and not shown.startswith("n0.hca"):
            what = f"{what}: cables join HCAs and switches"
        known = [*self._declared, "n*.hca1", *(f"n0.hca{i}" for i in range(1, self._hcas + 1))]
        slip = slip_in_range(text)
        hint = f" (did you mean {slip}?)" if slip else did_you_mean(shown, known)
        self._complain(loc, what + (hint or " (a switch, n0.hca1, n*.hca1 or n*.hca{1..8})"))
        return None

    # -- the whole

    def _check_reachability(self) -> None:
        bare = [name for name in self._all_hcas() if name not in self._cabled]
        if bare:
            more = _and_others(bare)
            self._complain(
                ("cables",),
                f"{bare[0]} has no cable{more}: it could not be reached; add one to a switch",
                key=True,
            )
            return
        islands = self._islands()
        if len(islands) == self._form.islands:
            return
        if self._form.islands > 1:
            first = ", ".join(leaves[0] for leaves in islands[:4])
            self._complain(
                ("islands",),
                f"{self._form.islands} islands are meant, the cables make {len(islands)}, of {first}"
                f"{' ...' if len(islands) > 4 else ''} (did you mean {len(islands)}?)",
            )
            return
        here, there = islands[0][0], islands[1][0]
        hca = next(hca for hca, leaf in self._builder.switch_of().items() if leaf == there)
        self._complain(
            ("switches", self._declared[there]),
            f"{there} is not connected to {here}: {hca} could not be reached; cable them together, directly or over a "
            f"spine, or add 'islands: {len(islands)}' if they are meant to be apart",
            key=True,
        )

    def _islands(self) -> list[list[str]]:
        """The leaves of each part of the fabric that no cable joins to another, in the order of their HCAs."""
        leaves = list(dict.fromkeys(self._builder.switch_of().values()))
        islands: list[list[str]] = []
        while leaves:
            reached = self._builder.reachable_switches(leaves[0])
            islands.append([leaf for leaf in leaves if leaf in reached])
            leaves = [leaf for leaf in leaves if leaf not in reached]
        return islands

    def _all_hcas(self) -> Iterator[str]:
        return (name for name, node in self._builder.nodes.items() if node.kind is NodeKind.HCA)


def _and_others(names: list[str]) -> str:
    others = len(names) - 1
    return "" if others == 0 else " (nor has one other)" if others == 1 else f" (nor have {others} others)"
