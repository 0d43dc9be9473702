"""From the path of a lab file to a lab that can be started, or to the mistakes in it, each with its place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fauxrdma.errors import ConfigError
from fauxrdma.ib.profiles import parse_profile
from fauxrdma.lab.file.form import LabForm
from fauxrdma.topology.complaints import parse_form
from fauxrdma.topology.events_file import event_problems
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.loading import is_fabric_file, load_topology, over_transport
from fauxrdma.topology.placement import Placement, choose_placement
from fauxrdma.topology.placement.choosing import is_places_file, parse_nodes
from fauxrdma.topology.yaml_document import YamlDocument
from fauxrdma.topology.yaml_scan import Loc

__all__ = ["LabFile", "load_lab", "load_lab_text"]

_EXPECTS = "a lab needs a name and a fabric"


@dataclass(frozen=True)
class LabFile:
    """A lab file that is right. `fabric` is what to start (with the transport and an absolute path), `placement_spec`
    likewise; `topology` and `placement` are what comes of them, `events` the faults as they stand in the file."""

    path: str
    text: str
    form: LabForm
    fabric: str
    placement_spec: str
    topology: Topology
    placement: Placement
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def on_nodes(self) -> list[int] | None:
        """The nodes that have ranks; None: all."""
        return parse_nodes(self.form.on_nodes) if self.form.on_nodes is not None else None

    @property
    def folder(self) -> Path:
        """Where the job is started and what its paths count from."""
        return Path(self.path).resolve().parent


def load_lab(path: str | Path) -> LabFile:
    """Read and check. Raises ConfigError with ``file:line:column: ...`` for the first mistake (and how many more there
    are), also for one that only shows with the fabric: nodes that do not fit, a placement that is not possible."""
    return load_lab_text(str(path), None)


def load_lab_text(path: str, text: str | None) -> LabFile:
    """The same with `text` for the content of the file (None: what it holds)."""
    document = YamlDocument(path, text, expects=_EXPECTS)
    form = parse_form(document, LabForm)
    if isinstance(form, list):
        more = f" (and {len(form) - 1} more)" if len(form) > 1 else ""
        raise ConfigError(form[0].at(path) + more)
    folder = Path(path).resolve().parent
    with _blaming(document, "profile"):
        profile = parse_profile(form.profile)
    with _blaming(document, "fabric"):
        fabric = _from_folder(form.fabric, folder) if is_fabric_file(form.fabric) else form.fabric
        load_topology(fabric, hca_rate=profile.port_rate)
    with _blaming(document, "transport"):
        fabric = over_transport(fabric, form.transport)
    with _blaming(document, "nodes"):
        load_topology(fabric, form.nodes, hca_rate=profile.port_rate)
    with _blaming(document, "gpus"):
        topology = load_topology(fabric, form.nodes, form.gpus, profile.port_rate)
    with _blaming(document, "routing"):
        topology = topology.with_routing(form.routing)
    with _blaming(document, "on_nodes" if form.on_nodes is not None else "placement"):
        places = is_places_file(form.placement)
        how = f"file:{_from_folder(places, folder)}" if places is not None else form.placement
        on_nodes = parse_nodes(form.on_nodes) if form.on_nodes is not None else None
        placement = choose_placement(how, topology, form.gpus, on_nodes=on_nodes, seed=form.seed)
    topology.active_gpus = placement.active_gpus
    problems = event_problems(document, form.events, topology) if form.events else []
    if problems:
        raise ConfigError(problems[0].at(path))
    if form.clock == "virtual" and form.driver != "process":
        problem = document.problem(
            ("clock",), "virtual time is kept for processes of one machine: use clock: paced, or driver: process"
        )
        raise ConfigError(problem.at(path))
    return LabFile(path, document.text, form, fabric, how, topology, placement, document.data.get("events", []))


def _from_folder(name: str, folder: Path) -> str:
    """A path that counts from the lab file, whose options (``my.yaml,x=y``) stay."""
    return str(folder / Path(name).expanduser())


@contextlib.contextmanager
def _blaming(document: YamlDocument, key: str) -> Iterator[None]:
    """Show at the value of `key` what is wrong with it; what another file's own place is in the message stays."""
    loc: Loc = (key,)
    try:
        yield
    except ConfigError as error:
        raise ConfigError(document.problem(loc, str(error)).at(document.path)) from None
