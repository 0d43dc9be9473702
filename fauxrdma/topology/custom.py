"""A fabric of one's own from a YAML file (the format is described in docs/fabric.md).

Mistakes are reported where they are: `file:line:column: message (did you mean ...?)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fauxrdma.errors import ConfigError
from fauxrdma.topology.building import PortsExhausted, TopologyBuilder
from fauxrdma.topology.graph import TIER_NAMES, NodeKind, Topology
from fauxrdma.topology.host_shape import HostShape
from fauxrdma.topology.schema import CableForm, FabricForm, did_you_mean, parse_form
from fauxrdma.topology.yaml_document import Problem, YamlDocument

__all__ = ["check_fabric_file", "load_fabric_file"]

_SWITCH_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_-]*$")
_HCA = re.compile(r"^n(\d+|\*)\.hca(\d+|\*)$")


def load_fabric_file(path: str, nodes: int | None = None) -> Topology:
    """The fabric of a file, cut down to its first `nodes` hosts if given.

    Raises ConfigError with one line for the first mistake in the file (and how many more there are), or when the file
    describes fewer hosts than `nodes`.
    """
    document = YamlDocument(path)
    form, problems = _check(document)
    if problems or form is None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ConfigError(problems[0].at(path) + more)
    if nodes is not None and nodes > form.hosts.count:
        problem = document.problem(
            ("hosts", "count"),
            f"{nodes} nodes were asked for, the file describes {form.hosts.count}: raise 'count' if the switches have "
            f"ports for more, or ask for at most {form.hosts.count}",
        )
        raise ConfigError(problem.at(path))
    return _Assembly(document, form, nodes or form.hosts.count).topology()


def check_fabric_file(path: str) -> list[str]:
    """Everything wrong with a fabric file, one `file:line:column: message` each, in order; empty when it is good.

    Raises ConfigError if it cannot be read or is not YAML.
    """
    return [problem.at(path) for problem in _check(YamlDocument(path))[1]]


def _check(document: YamlDocument) -> tuple[FabricForm | None, list[Problem]]:
    form = parse_form(document)
    if isinstance(form, list):
        return None, form
    return form, _Assembly(document, form, form.hosts.count).problems()


class _Assembly:
    """Plugs a fabric together from its form, collecting what does not fit."""

    def __init__(self, document: YamlDocument, form: FabricForm, hosts: int) -> None:
        self._document = document
        self._form = form
        self._hosts = hosts
        self._hcas = form.hosts.gpus if form.hosts.hcas is None else form.hosts.hcas
        self._builder = TopologyBuilder(
            HostShape(
                gpus=form.hosts.gpus,
                storage_hcas=max(0, self._hcas - form.hosts.gpus),
                gpus_per_pcie_switch=form.hosts.gpus_per_pcie_switch,
                pcie_rate=form.hosts.pcie_rate,
            )
        )
        self._problems: list[Problem] = []
        self._cabled: dict[str, int] = {}

    def problems(self) -> list[Problem]:
        """Everything wrong, in order of position."""
        self._assemble()
        if not self._problems:
            self._check_reachability()
        return sorted(self._problems)

    def topology(self) -> Topology:
        """The finished topology; the form must be free of problems."""
        self._assemble()
        form = self._form
        return self._builder.build(
            name=form.name,
            description=form.description,
            hosts=self._hosts,
            switch_latency_ns=form.switch_latency,
            switching=form.switching,
            mtu=form.mtu,
        )

    def _complain(self, loc: tuple[int | str, ...], message: str, *, key: bool = False) -> None:
        self._problems.append(self._document.problem(loc, message, key=key))

    def _assemble(self) -> None:
        form = self._form
        if self._hcas < form.hosts.gpus:
            self._complain(
                ("hosts", "hcas"),
                f"{self._hcas} HCAs for {form.hosts.gpus} GPUs: every GPU needs an HCA of its own (GPU g uses HCA g+1)",
            )
            return
        for name, switch in form.switches.items():
            if not _SWITCH_NAME.match(name):
                self._complain(
                    ("switches", name),
                    f"{name!r} is not a switch name: letters, digits, - and _, beginning with a letter",
                    key=True,
                )
            else:
                self._builder.add_switch(name, TIER_NAMES.index(switch.tier), switch.ports)
        for host in range(self._hosts):
            self._builder.add_host(host)
        for number, cable in enumerate(form.cables):
            self._add_cable(number, cable)

    def _add_cable(self, number: int, cable: CableForm) -> None:
        ends = [self._end(number, "from", cable.source), self._end(number, "to", cable.target)]
        if None in ends:
            return
        sources, targets = (end for end in ends if end is not None)
        is_hca = [_HCA.match(cable.source) is not None, _HCA.match(cable.target) is not None]
        if all(is_hca):
            self._complain(("cables", number, "to"), f"{cable.target} is an HCA too: an HCA is cabled to a switch")
            return
        if any(is_hca) and cable.count > 1:
            self._complain(("cables", number, "count"), "an HCA has one port: 'count' is for cables between switches")
            return
        if cable.source == cable.target:
            self._complain(("cables", number, "to"), f"a cable from {cable.source} to itself")
            return
        hca_key = "from" if is_hca[0] else "to"
        for source in sources:
            for target in targets:
                hca = source if is_hca[0] else target if is_hca[1] else None
                if hca is not None and hca in self._cabled:
                    first = self._document.problem(("cables", self._cabled[hca]), "").line
                    self._complain(("cables", number, hca_key), f"{hca} already has a cable (line {first})")
                    return
                if hca is not None:
                    self._cabled[hca] = number
                for _ in range(cable.count):
                    if not self._plug(number, source, target, cable):
                        return

    def _plug(self, number: int, source: str, target: str, cable: CableForm) -> bool:
        try:
            self._builder.connect(source, target, cable.rate, cable.length)
        except PortsExhausted as full:
            self._complain(
                ("cables", number),
                f"{full.switch} has {full.radix} ports and all are taken: no port is left for this cable "
                f"({source} to {target})",
            )
            return False
        return True

    def _end(self, number: int, key: str, text: str) -> list[str] | None:
        """The nodes that one end of a cable names, or None after complaining. Hosts that were left out name none."""
        match = _HCA.match(text)
        if match is None:
            if text in self._form.switches:
                return [text] if text in self._builder.nodes else None
            known = [*self._form.switches, "n*.hca1", *(f"n0.hca{i}" for i in range(1, self._hcas + 1))]
            hint = did_you_mean(text, known) or " (a switch, n0.hca1, n*.hca1 or n*.hca*)"
            self._complain(("cables", number, key), f"there is no {text!r} to plug a cable into{hint}")
            return None
        host, index = match.groups()
        if host != "*" and int(host) >= self._form.hosts.count:
            last = self._form.hosts.count - 1
            self._complain(("cables", number, key), f"there is no host n{host}: hosts are n0 to n{last}")
            return None
        if index != "*" and not 1 <= int(index) <= self._hcas:
            self._complain(("cables", number, key), f"hosts have hca1 to hca{self._hcas}, not hca{index}")
            return None
        hosts = range(self._hosts) if host == "*" else [int(host)] if int(host) < self._hosts else []
        indices = range(1, self._hcas + 1) if index == "*" else [int(index)]
        return [f"n{h}.hca{i}" for h in hosts for i in indices]

    def _check_reachability(self) -> None:
        bare = [name for name in self._all_hcas() if name not in self._cabled]
        if bare:
            more = f" (nor have {len(bare) - 1} others)" if len(bare) > 1 else ""
            self._complain(("cables",), f"{bare[0]} has no cable{more}: it could not be reached", key=True)
            return
        groups = self._builder.switch_of()
        start = groups[next(self._all_hcas())]
        reached = self._builder.reachable_switches(start)
        for hca, leaf in groups.items():
            if leaf not in reached:
                self._complain(
                    ("switches", leaf), f"{leaf} is not connected to {start}: {hca} could not be reached", key=True
                )
                return

    def _all_hcas(self) -> Iterator[str]:
        return (name for name, node in self._builder.nodes.items() if node.kind is NodeKind.HCA)
