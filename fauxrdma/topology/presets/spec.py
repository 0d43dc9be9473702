"""Reading a preset spec, ``name[:speed][,key=value...]``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from fauxrdma.errors import ConfigError
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.presets import DEFAULT_NODES, PRESETS, SPEEDS, HostOptions, Preset, Speed
from fauxrdma.topology.presets.base import build_preset, defaults
from fauxrdma.topology.presets.options import did_you_mean, parse_options, shown
from fauxrdma.units import Rate

__all__ = ["ChosenPreset", "common_options", "own_options", "parse_preset"]


@dataclass(frozen=True, slots=True)
class ChosenPreset:
    """A preset with its options. `name` is the spec without what says nothing new (defaults, the usual speed)."""

    name: str
    preset: Preset
    hosts: HostOptions
    speed: Speed

    def build(self, nodes: int | None = None) -> Topology:
        """The fabric with so many nodes; without a number two, or fewer where two do not fit. Raises ConfigError."""
        if nodes is None:
            most = self.preset.max_nodes(self.hosts.shape(self.speed))
            nodes = max(1, min(DEFAULT_NODES, most))
        return build_preset(self.preset, self.hosts, self.speed, nodes, self.name)

    @property
    def max_nodes(self) -> int:
        """How many nodes fit."""
        return self.preset.max_nodes(self.hosts.shape(self.speed))


def parse_preset(spec: str, hca_rate: Rate | None = None) -> ChosenPreset | None:
    """The preset that `spec` chooses, or None if it does not begin with the name of one. Without a speed it is the one
    whose cables run at `hca_rate`, or the preset's usual. Raises ConfigError for an unknown speed, key or value."""
    head, *parts = spec.split(",")
    name, colon, speed_name = head.partition(":")
    form = PRESETS.get(name)
    if form is None:
        return None
    speed = SPEEDS.get(speed_name.lower()) if colon else _speed_for(hca_rate, form.usual_speed)
    if speed is None:
        raise ConfigError(f"{spec}: unknown rate {speed_name!r}{did_you_mean(speed_name, SPEEDS)}")
    usual = defaults(form)
    texts = _texts(spec, parts, usual)
    try:
        own, common = parse_options(form, texts), parse_options(HostOptions, texts)
    except ConfigError as error:
        raise ConfigError(f"{spec}: {error}") from None
    told = {**own, **common}
    words = [name if speed.name == form.usual_speed else f"{name}:{speed.name}"]
    words += [f"{key}={text}" for key, text in texts.items() if told[key] != usual[key]]
    return ChosenPreset(",".join(words), form(**own), HostOptions(**{**form.usual, **common}), speed)


def _texts(spec: str, parts: list[str], known: dict[str, Any]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for part in parts:
        key, equals, text = (word.strip() for word in part.partition("="))
        if key not in known:
            raise ConfigError(f"{spec}: unknown option {key!r}{did_you_mean(key, known)}")
        if not equals or not text:
            raise ConfigError(f"{spec}: {key!r} needs a value, as in {key}=...")
        if key in texts:
            raise ConfigError(f"{spec}: {key!r} is given twice")
        texts[key] = text
    return texts


def _speed_for(hca_rate: Rate | None, usual: str) -> Speed:
    return next((speed for speed in SPEEDS.values() if speed.cable == hca_rate), SPEEDS[usual])


def own_options(form: type[Preset]) -> list[tuple[str, str, str]]:
    """(key, default, what it is) of a preset's own options, and of the common ones whose default differs."""
    usual = defaults(form)
    changed = [field for field in dataclasses.fields(HostOptions) if field.name in form.usual]
    fields = [*dataclasses.fields(form), *changed]
    return [(field.name, shown(usual[field.name]), field.metadata["what"]) for field in fields]


def common_options() -> list[tuple[str, str, str]]:
    """(key, default, what it is) of the options that every preset has."""
    fields = dataclasses.fields(HostOptions)
    return [(field.name, shown(field.default), field.metadata["what"]) for field in fields]
