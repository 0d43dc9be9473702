"""The form of a lab file: which keys there are, what they hold, and what each is for.

As with fabric files (`fauxrdma.topology.schema`), only what can be said of one value by itself is checked here; whether
the fabric has so many nodes, or the placement fits, is found by `fauxrdma.lab.file.loading`.
"""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from fauxrdma.errors import ConfigError
from fauxrdma.report.thresholds import parse_threshold
from fauxrdma.topology.placement.choosing import parse_nodes
from fauxrdma.topology.quantities import RoutingField, SizeField
from fauxrdma.topology.schema import EventForm, Form, Key

__all__ = ["JobForm", "LabForm", "ResourcesForm", "json_schema", "keys"]

# A folder, a host name in a container network and a Kubernetes object are called so (RFC 1123, section 2.1). Sockets
# lie in the folder, and a Unix socket's path has 107 bytes.
_NAME = re.compile(r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def _is_name(value: str) -> str:
    if not _NAME.match(value):
        better = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")[:32].strip("-")
        raise ValueError(
            f"{value[:60]!r} cannot be the name of hosts and folders: use at most 32 lower-case letters, digits and -"
            + (f" (did you mean {better}?)" if better else "")
        )
    return value


def _is_command(value: object) -> object:
    """A list of words as it is; one text as a shell would split it."""
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(value)
    except ValueError as error:
        raise ValueError(f"{value[:60]!r} cannot be split into words ({error}): close the quote") from None


def _is_dilation(value: object) -> str:
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if value == "auto" or (number is not None and 1 <= number < 1e12):
        return str(value)
    raise ValueError(f"must be auto or a number k >= 1, not {str(value)[:60]!r}")


def _is_node_list(value: str) -> str:
    try:
        parse_nodes(value)
    except ConfigError as error:
        raise ValueError(str(error).replace("--on-nodes ", "")) from None
    return value


def _is_threshold(value: str) -> str:
    try:
        parse_threshold(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return value


def _is_environment(value: dict[str, str]) -> dict[str, str]:
    for name in value:
        if not _VARIABLE.match(name):
            raise ValueError(f"{name[:60]!r} is no name of a variable: use letters, digits and _")
    return value


class JobForm(Form):
    """What each rank runs."""

    command: Annotated[list[str], BeforeValidator(_is_command)] = Field(
        min_length=1,
        examples=["train.py --epochs 1"],
        description="A script (train.py), -m MODULE or a program, with its arguments: one text, or a list of words.",
    )
    env: Annotated[dict[str, str], AfterValidator(_is_environment)] = Field(
        default_factory=dict, examples=['{SEED: "1"}'], description="Added to what ranks find in their environment."
    )


class ResourcesForm(Form):
    """What the container of a node may use; the process driver sets no limits."""

    cpus: float = Field(default=1.0, gt=0, le=1024, description="CPU cores of a node's container.")
    memory: SizeField = Field(
        default="2GiB",  # type: ignore[assignment]  # read like all that comes from a file
        examples=["2GiB"],
        description="Memory of a node's container.",
    )


class LabForm(Form):
    """A lab for fauxrdma: a fabric, its nodes, and the job they run."""

    name: Annotated[str, AfterValidator(_is_name)] = Field(
        min_length=1, examples=["my-lab"], description="What the lab is called; there is one of a name at a time."
    )
    fabric: str = Field(
        min_length=1,
        examples=["seed-rail8"],
        description="A preset (fauxrdma topo list) or a fabric file, whose path counts from this file.",
    )
    nodes: int = Field(default=2, ge=1, le=4096, description="Nodes of the fabric.")
    gpus: int = Field(default=1, ge=1, le=64, description="GPUs of each node that take part: one rank each.")
    placement: str = Field(
        default="block",
        min_length=1,
        description="Which rank sits where: block, cyclic, rail-aligned, random:SEED, or a file of places.",
    )
    on_nodes: Annotated[str, AfterValidator(_is_node_list)] | None = Field(
        default=None, examples=['"0,2-3"'], description="The nodes that have ranks, as text: 0,2-3. None: all."
    )
    transport: Literal["infiniband", "rocev2", "rocev1", "iwarp"] | None = Field(
        default=None, description="What the fabric speaks. None: the fabric's own."
    )
    routing: RoutingField | None = Field(default=None, description="Routing engine. None: the fabric's own.")
    clock: Literal["paced", "virtual", "none"] = Field(
        default="paced", description="paced: shaped by the fabric's model; virtual: in simulated time; none: unshaped."
    )
    dilation: Annotated[
        str,
        BeforeValidator(_is_dilation),
        WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "number", "minimum": 1}]}),
    ] = Field(
        default="auto", description="One ns of fabric time lasts so many ns of wall time; auto measures the host."
    )
    seed: int = Field(default=0, ge=0, description="Seed of every random choice of the fabric.")
    profile: str = Field(default="ibta", min_length=1, description="Kind of HCA, as fauxrdma run --profile takes it.")
    algorithm: str | None = Field(default=None, description="What collectives use. None: the ranks' own choice.")
    driver: Literal["process", "compose"] = Field(
        default="process", description="What the nodes are: processes of this machine, or containers."
    )
    image: str = Field(
        default="fauxrdma", min_length=1, description="The containers' image, which the Dockerfile builds."
    )
    resources: ResourcesForm = Field(
        default_factory=ResourcesForm, examples=["{cpus: 1, memory: 2GiB}"], description="Limits of a node's container."
    )
    job: JobForm | None = Field(
        default=None, examples=["{command: train.py}"], description="What `fauxrdma lab up --run` runs."
    )
    thresholds: list[Annotated[str, AfterValidator(_is_threshold)]] = Field(
        default_factory=list,
        examples=["[step < 5ms]"],
        description="What must hold for `--run` to succeed, as 'all_reduce.busbw >= 0.85 * line_rate'.",
    )

    events: list[EventForm] = Field(
        default_factory=list,
        examples=["[{at: 5ms, fault: link-down, link: n0.hca1}]"],
        description="Faults to come, as in a fabric file (docs/faults.md).",
    )


_INSIDE: dict[str, type[Form]] = {"resources": ResourcesForm, "job": JobForm}


def keys() -> list[Key]:
    """Every key of a lab file, in the order of the form."""
    found = []
    for name, field in LabForm.model_fields.items():
        inner = _INSIDE.get(name)
        if inner is not None:
            found += [_key(f"{name}.{part}", each) for part, each in inner.model_fields.items()]
        else:
            found.append(_key(name, field))
    return found


def _key(path: str, field: Any) -> Key:
    default = field.get_default(call_default_factory=True)
    shown = "required" if field.is_required() else "none" if default is None else str(default or "empty")
    if default == 0 and not isinstance(default, bool):
        shown = "0"
    return Key(path, field.description or path, shown)


def json_schema() -> dict[str, Any]:
    """The form as a JSON schema (draft 2020-12) for editors: types, units, ranges, descriptions of every key."""
    schema = LabForm.model_json_schema(by_alias=True)
    command = schema["$defs"]["JobForm"]["properties"]["command"]
    listed = {key: command.pop(key) for key in ("type", "items", "minItems")}
    command["anyOf"] = [listed, {"type": "string", "minLength": 1}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
