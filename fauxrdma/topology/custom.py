"""A fabric of one's own from a YAML file (the format is described in docs/fabric.md).

Mistakes are reported where they are: `file:line:column: message (did you mean ...?)`.
"""

from __future__ import annotations

from fauxrdma.errors import ConfigError
from fauxrdma.topology.complaints import parse_form
from fauxrdma.topology.events_file import event_problems, events_of
from fauxrdma.topology.file_assembly import FileAssembly
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.schema import FabricForm
from fauxrdma.topology.yaml_document import YamlDocument
from fauxrdma.topology.yaml_scan import Problem

__all__ = ["check_fabric_file", "fabric_file_warnings", "load_fabric_file", "load_fabric_text"]


def load_fabric_file(path: str, nodes: int | None = None) -> Topology:
    """The fabric of a file, cut down to its first `nodes` hosts if given.

    Raises ConfigError with one line for the first mistake in the file (and how many more there are), or when the file
    describes fewer hosts than `nodes`.
    """
    return _load(YamlDocument(path), nodes)


def load_fabric_text(path: str, text: str, nodes: int | None = None) -> Topology:
    """The fabric of a file whose content is `text`; as `load_fabric_file`."""
    return _load(YamlDocument(path, text), nodes)


def _load(document: YamlDocument, nodes: int | None) -> Topology:
    path = document.path
    form, problems, _ = _check(document)
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
    topology = FileAssembly(document, form, nodes or form.hosts.count).topology()
    topology.events = events_of(form.events, topology)
    return topology


def check_fabric_file(path: str) -> list[Problem]:
    """Everything wrong with a fabric file, in order of position; empty when it is good.

    Raises ConfigError, with its position, if it cannot be read or is not YAML.
    """
    return _check(YamlDocument(path))[1]


def fabric_file_warnings(path: str) -> list[Problem]:
    """What is probably meant otherwise in a file that is good: impossible rates, switches without a cable.

    Raises ConfigError if the file cannot be read or is not YAML.
    """
    return _check(YamlDocument(path))[2]


def _check(document: YamlDocument) -> tuple[FabricForm | None, list[Problem], list[Problem]]:
    form = parse_form(document, FabricForm)
    if isinstance(form, list):
        return None, form, []
    assembly = FileAssembly(document, form, form.hosts.count)
    problems = assembly.problems()
    if form.events and not problems:
        whole = FileAssembly(document, form, form.hosts.count).topology()
        problems = event_problems(document, form.events, whole)
    return form, problems, assembly.warnings()
