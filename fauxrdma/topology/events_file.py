"""Events of a fabric, from its file or one of their own: what each says is held against its kind and the fabric.

A file of events holds what follows ``events:`` in a fabric's::

    events:
      - {at: 5ms, fault: link-down, link: n0.hca1, for: 2ms}
      - {at: 10ms, fault: degrade, link: leaf1 -- spine1:1, rate: 50Gbps}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from fauxrdma.errors import ConfigError
from fauxrdma.topology.complaints import parse_form
from fauxrdma.topology.fault_events import KINDS, misfit
from fauxrdma.topology.fault_targets import checked_fault
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.schema import EventForm, EventsForm
from fauxrdma.topology.yaml_document import YamlDocument
from fauxrdma.topology.yaml_scan import Problem
from fauxrdma.wire.fault_messages import FaultEvent

__all__ = ["event_from", "event_problems", "events_of", "load_events"]

_TARGETS = ("link", "switch", "hca", "gpu")


def load_events(path: str, topology: Topology) -> list[FaultEvent]:
    """The events of a file, for a fabric. Raises ConfigError with one line, as ``file:line:column: ...``, for the first
    mistake, which may be that `topology` has not what an event is about."""
    document = YamlDocument(path, expects="it needs events, a list as [{at: 5ms, fault: link-down, link: n0.hca1}]")
    form = parse_form(document, EventsForm)
    problems = form if isinstance(form, list) else event_problems(document, form.events, topology)
    if isinstance(form, list) or problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ConfigError(problems[0].at(path) + more)
    return events_of(form.events, topology)


def event_problems(document: YamlDocument, events: Sequence[EventForm], topology: Topology) -> list[Problem]:
    """Everything wrong with the events of a file, in order of position."""
    found = []
    for number, form in enumerate(events):
        wrong = _mistake(form, topology)
        if wrong is not None:
            key, message = wrong
            found.append(document.problem(("events", number, key), message))
    return sorted(found)


def _mistake(form: EventForm, topology: Topology) -> tuple[str, str] | None:
    kind = KINDS[form.fault]
    for key in _TARGETS:
        if getattr(form, key) is not None and key != kind.target:
            what = f"it takes {kind.target!r}" if kind.target else "it befalls the whole fabric"
            return key, f"{kind.name} has no {key!r}: {what}"
    if form.groups is not None and kind.target != "groups":
        return "groups", f"{kind.name} has no 'groups': only a partition has"
    event = _event(form)
    try:
        wrong = misfit(event)
        if wrong is None:
            checked_fault(event, topology)
    except ConfigError as error:
        return kind.target, str(error)
    return wrong


def events_of(events: Sequence[EventForm], topology: Topology) -> list[FaultEvent]:
    """The events that can happen in `topology`, which may be only a part of the fabric that they are of."""
    found = []
    for form in events:
        try:
            found.append(checked_fault(_event(form), topology))
        except ConfigError:  # of a host that is left out
            continue
    return found


def event_from(keys: dict[str, Any]) -> FaultEvent:
    """An event from what would be in a file. Raises ConfigError for the first mistake that can be seen without the
    fabric."""
    try:
        return _event(EventForm.model_validate(keys))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in detail["loc"])
        raise ConfigError(f"{name}: {detail['msg'].removeprefix('Value error, ')}") from None


def _event(form: EventForm) -> FaultEvent:
    target = next((given for key in _TARGETS if (given := getattr(form, key)) is not None), "")
    return FaultEvent(
        form.fault,
        target,
        form.at,
        form.duration or 0,
        form.rate.bits_per_s if form.rate is not None else 0,
        form.latency or 0,
        form.loss or 0.0,
        float(form.bit_errors or 0.0),
        float(form.factor or 0.0),
        -1 if form.priority is None else form.priority,
        form.every or 0,
        form.times or 1,
        form.groups or [],
    )
