"""The form of a fabric file: which keys there are, what they hold, and what each is for.

Only what can be said of one value by itself is checked here; what concerns several (ports, references) is in
`fauxrdma.topology.custom`, and `fauxrdma.topology.complaints` says what does not fit. Defaults are written as a user
would write them; they are those of `HostShape` and of the presets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from fauxrdma.topology.quantities import (
    ComputeField,
    LengthField,
    MtuField,
    RateField,
    RoutingField,
    ShareField,
    TimeField,
)

__all__ = [
    "CableForm",
    "EventForm",
    "EventsForm",
    "FabricForm",
    "Form",
    "HostsForm",
    "Key",
    "SwitchForm",
    "json_schema",
    "keys",
]


class Form(BaseModel):
    """A mapping of the file: keys that are not named in it are refused, and nothing is converted."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True, validate_default=True
    )


def _written(default: str, description: str) -> Any:
    """A field whose default is text that has yet to be read, like all that comes from a file."""
    return Field(default=default, description=description)


class HostsForm(Form):
    """How many hosts there are and what is inside each; all are alike."""

    count: int = Field(
        ge=1,
        le=4096,
        examples=[4],
        description="How many hosts there are. They are called n0, n1, ...; `--nodes N` uses the first N.",
    )
    gpus: int = Field(default=8, ge=1, le=64, description="GPUs of each host, called n0.gpu0, n0.gpu1, ...")
    gpus_per_hca: Literal[0, 1, 2, 4] = Field(
        default=1, description="GPUs that share a compute HCA; 0: none of its own, GPUs use the storage HCAs."
    )
    storage_hcas: int = Field(
        default=0, ge=0, le=64, description="HCAs for storage, numbered after the compute HCAs; each needs its cable."
    )
    gpus_per_pcie_switch: int = Field(
        default=2, ge=1, le=64, description="GPUs that share a PCIe switch, with the HCAs that serve them."
    )
    pcie_rate: RateField = _written(
        "252Gbps",
        "Rate of the PCIe lanes of every GPU and HCA and of each PCIe switch's uplink, before packet headers.",
    )
    nvlink_rate: RateField | None = Field(
        default=None, description="What one GPU can send over NVLink, all NVSwitches together; none: no NVLink."
    )
    nvswitches: int = Field(default=0, ge=0, le=64, description="NVSwitches that every GPU of a host is joined to.")
    gpudirect: bool = Field(
        default=True,
        description="Whether HCAs reach GPU memory directly; false adds the detour through host memory.",
    )


class SwitchForm(Form):
    """One switch, or all those that its name stands for."""

    ports: int = Field(ge=2, le=4096, examples=[40], description="Ports of the switch (its radix).")
    tier: Literal["leaf", "spine", "core"] = Field(
        default="leaf", description="Where it stands: hosts are on leaves, spines join leaves, cores join spines."
    )


class CableForm(Form):
    """Cables between `from` and `to`; ranges on both ends go in step, everything else is each with each."""

    source: str = Field(
        alias="from",
        min_length=1,
        examples=["n*.hca{1..8}"],
        description="One end: a switch (leaf1, leaf{1..8}, spine*) or HCAs (n0.hca1, n*.hca{1..8}, n{0..3}.hca*).",
    )
    target: str = Field(
        alias="to", min_length=1, examples=["leaf{1..8}"], description="The other end, written in the same way."
    )
    rate: RateField = Field(examples=["200Gbps"], description="Signalling rate of each cable.")
    length: LengthField = Field(examples=["3m"], description="Length of each cable, which gives its latency.")
    count: int = Field(
        default=1, ge=1, le=4096, description="Cables in parallel between each pair; between switches only."
    )
    join: Literal["in-step", "mesh"] = Field(
        default="in-step",
        description="How ranges on both ends meet: the first with the first and so on, or (mesh) each with each.",
    )
    from_port: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Port at the end `from`, for one cable; the lowest free one if not given.",
    )
    to_port: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Port at the end `to`, for one cable; the lowest free one if not given.",
    )


class EventForm(Form):
    """A fault, and when it begins and ends (docs/faults.md). Which keys it has depends on the fault."""

    at: TimeField = _written("0ns", "When it begins, after the first queue pair was connected; fabric time.")
    fault: Literal[
        "link-down", "link-flap", "degrade", "latency", "bit-errors", "packet-loss", "pause-storm", "switch-down",
        "hca-down", "slow-gpu", "partition", "sm-restart",
    ] = Field(examples=["link-down"], description="What happens.")  # fmt: skip
    link: str | None = Field(
        default=None,
        examples=["n0.hca1"],
        description="The cable it befalls: an HCA for its own, or both ends, as leaf1->spine1:2 or leaf1 -- spine1:2.",
    )
    switch: str | None = Field(default=None, examples=["leaf1"], description="The switch it befalls.")
    hca: str | None = Field(default=None, examples=["n0.hca1"], description="The HCA it befalls.")
    gpu: str | None = Field(default=None, examples=["n0.gpu0"], description="The GPU it befalls.")
    groups: list[list[str]] | None = Field(
        default=None,
        examples=["[[n0, n1], [n2]]"],
        description="Nodes or HCAs, in groups that reach their own only; who is in none reaches all.",
    )
    rate: RateField | None = Field(default=None, examples=["50Gbps"], description="What the cable signals at.")
    latency: TimeField | None = Field(default=None, examples=["5us"], description="What the cable takes longer.")
    loss: ShareField | None = Field(default=None, examples=["0.5%"], description="How many packets are lost.")
    bit_errors: float | None = Field(
        default=None, ge=0, le=1, examples=["1e-7"], description="The part of bits that are wrong."
    )
    factor: float | None = Field(default=None, ge=1, le=1e6, examples=["4.0"], description="How many times slower.")
    priority: int | None = Field(
        default=None, ge=0, le=15, examples=["3"], description="The service level that is paused. None: all."
    )
    duration: TimeField | None = Field(
        default=None, alias="for", examples=["2ms"], description="How long it lasts. None: to the end."
    )
    every: TimeField | None = Field(
        default=None, examples=["5ms"], description="From one outage of a flapping cable to the next."
    )
    times: int | None = Field(default=None, ge=1, le=10_000, examples=["3"], description="How many outages.")


class EventsForm(Form):
    """A file of events, for --events."""

    events: list[EventForm] = Field(
        min_length=1, examples=["[{at: 5ms, fault: link-down, link: n0.hca1}]"], description="What happens when."
    )


class FabricForm(Form):
    """A fabric for fauxrdma: hosts, switches, and the cables between them."""

    name: str = Field(min_length=1, examples=["my-fabric"], description="What reports call the fabric.")
    description: str = Field(default="", description="One line about it.")
    mtu: MtuField = _written("4096B", "Payload of a full packet.")
    transport: Literal["infiniband", "rocev2", "rocev1", "iwarp"] = Field(
        default="infiniband", description="What the fabric speaks; all but infiniband make the HCAs' ports Ethernet."
    )
    routing: RoutingField | None = Field(
        default=None,
        description="What computes the routes: minhop, updn, ftree or dfsssp on InfiniBand; ecmp, spray or adaptive on "
        "Ethernet. updn and ftree take roots, the switches at the top: updn:roots=spine1,spine2. None: the usual one.",
    )
    switching: Literal["cut-through", "store-and-forward"] | None = Field(
        default=None,
        description="Whether a switch sends a packet on before it has all of it. None: cut-through on InfiniBand, "
        "store-and-forward on Ethernet.",
    )
    switch_latency: TimeField | None = Field(
        default=None,
        description="What every switch adds to a packet's way. None: 130ns on InfiniBand, 400ns on Ethernet.",
    )
    routed: Literal["spine", "core"] | None = Field(
        default=None,
        description="The lowest tier of switches that are IP routers, on Ethernet: each part below it is an IP subnet.",
    )
    compute: ComputeField | None = Field(
        default=None,
        description="What a rank's own computing costs in virtual time: a time for each of its calls (20us), a "
        "multiple of the CPU time it used (cpu*0.002), none; with ranks in front for some: 20us 3=1ms 5-7=none.",
    )
    islands: int = Field(
        default=1,
        ge=1,
        le=4096,
        description="How many parts that no cable joins there are to be: planes, or rails without spines.",
    )
    hosts: HostsForm = Field(examples=["{count: 4}"])
    switches: dict[str, SwitchForm] = Field(
        min_length=1,
        examples=["{leaf1: {ports: 40}}"],
        description="The switches by name; leaf{1..8} stands for eight.",
    )
    cables: list[CableForm] = Field(
        min_length=1,
        examples=["[{from: n*.hca*, to: leaf1, rate: 200Gbps, length: 3m}]"],
        description="What is plugged in where; ports are taken in this order.",
    )
    events: list[EventForm] = Field(default=[], description="What befalls the fabric, and when.")


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the file: `path` as ``hosts.gpus``, ``switches.NAME.ports`` or ``cables[].rate``; `default` as one would
    write it, or "required"."""

    path: str
    description: str
    default: str


def keys() -> list[Key]:
    """Every key of a fabric file, in the order of the form."""
    found = []
    for name, field in FabricForm.model_fields.items():
        if name not in _INSIDE:
            found.append(_key(name, name, field))
            continue
        prefix, form = _INSIDE[name]
        found += [_key(prefix + (inner.alias or part), part, inner) for part, inner in form.model_fields.items()]
    return found


_INSIDE: dict[str, tuple[str, type[Form]]] = {
    "hosts": ("hosts.", HostsForm),
    "switches": ("switches.NAME.", SwitchForm),
    "cables": ("cables[].", CableForm),
    "events": ("events[].", EventForm),
}


def _key(path: str, name: str, field: FieldInfo) -> Key:
    default = "required" if field.is_required() else "none" if field.default is None else str(field.default)
    if isinstance(field.default, bool):
        default = default.lower()
    return Key(path, field.description or name, default or "empty")


def json_schema() -> dict[str, Any]:
    """The form as a JSON schema (draft 2020-12) for editors: types, units, ranges, descriptions of every key."""
    schema = FabricForm.model_json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
    }
