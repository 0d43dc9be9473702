"""The form of fabric files: its JSON schema, its page of keys, its defaults, and the example files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from fauxrdma.cli.main import main
from fauxrdma.topology.building import DEFAULT_MTU, DEFAULT_SWITCH_LATENCY_NS
from fauxrdma.topology.custom import check_fabric_file, fabric_file_warnings
from fauxrdma.topology.host_shape import HostShape
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.quantities import MTUS
from fauxrdma.topology.schema import HostsForm, json_schema, keys

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "fabrics").glob("*.yaml"))
PAGE = (ROOT / "docs" / "fabric.md").read_text()


def refusals(value: Any, schema: dict[str, Any], whole: dict[str, Any], where: str = "") -> list[str]:
    """What a JSON schema has against a value: the keywords that ours uses, as draft 2020-12 defines them. Refuses to
    pass over a keyword that it does not know."""
    known = {
        "$ref", "$defs", "$schema", "type", "properties", "additionalProperties", "required", "items", "pattern",
        "enum", "anyOf", "minimum", "maximum", "minLength", "minItems", "minProperties", "description", "default",
        "examples", "title",
    }  # fmt: skip
    assert set(schema) <= known, set(schema) - known
    if "$ref" in schema:
        return refusals(value, whole["$defs"][schema["$ref"].removeprefix("#/$defs/")], whole, where)
    if "anyOf" in schema:
        each = [refusals(value, option, whole, where) for option in schema["anyOf"]]
        return [] if [] in each else each[0]
    types = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "object": dict,
        "array": list,
        "null": type(None),
    }
    wanted = types[schema["type"]] if "type" in schema else object
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is int):
        return [f"{where}: not {schema['type']}"]
    out = []
    if "enum" in schema and value not in schema["enum"]:
        out.append(f"{where}: not in enum")
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            out.append(f"{where}: pattern")
        if len(value) < schema.get("minLength", 0):
            out.append(f"{where}: minLength")
    if isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        out.append(f"{where}: range")
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            out.append(f"{where}: minItems")
        for at, each in enumerate(value):
            out += refusals(each, schema["items"], whole, f"{where}[{at}]")
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        out += [f"{where}: {name} missing" for name in schema.get("required", ()) if name not in value]
        for name, each in value.items():
            if name not in properties and others is False:
                out.append(f"{where}: {name} unknown")
            else:
                out += refusals(each, properties.get(name, others), whole, f"{where}.{name}")
    return out


def parsed(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_good_and_passes_the_schema(path: Path) -> None:
    assert check_fabric_file(str(path)) == []
    assert fabric_file_warnings(str(path)) == []
    assert (
        load_topology(str(path)).hosts
        == load_topology(str(path), nodes=1).hosts * parsed(path.read_text())["hosts"]["count"]
    )
    schema = json_schema()
    assert refusals(parsed(path.read_text()), schema, schema) == []


def test_the_schema_refuses_what_the_file_may_not_have() -> None:
    schema = json_schema()
    good = (ROOT / "examples" / "fabrics" / "two-leaf.yaml").read_text()
    for old, new, says in (
        ("rate: 200Gbps", "rate: 200", ".cables[0].rate: not string"),
        ("rate: 200Gbps", "rate: '200'", ".cables[0].rate: pattern"),
        ("rate: 200Gbps", "rate: 200GB", ".cables[0].rate: pattern"),
        ("length: 2m", "length: 2", ".cables[0].length: not string"),
        ("length: 2m", "length: 2Gbps", ".cables[0].length: pattern"),
        ("mtu: 4096B", "mtu: 4096", ".mtu: not string"),
        ("mtu: 4096B", "mtu: 9000B", ".mtu: pattern"),
        ("switch_latency: 130ns", "switch_latency: 130", ".switch_latency: not string"),
        ("gpus: 2", "gpus: 0", ".hosts.gpus: range"),
        ("gpus: 2", "gpu: 2", ".hosts: gpu unknown"),
        ("tier: leaf", "tier: leef", ".switches.leaf1.tier: not in enum"),
        ("to: leaf1, ", "", ".cables[0]: to missing"),
    ):
        assert old in good
        assert says in refusals(parsed(good.replace(old, new, 1)), schema, schema)


def test_every_mtu_passes_its_pattern() -> None:
    pattern = json_schema()["properties"]["mtu"]["pattern"]
    assert all(re.search(pattern, f"{mtu}B") for mtu in MTUS)


def test_every_key_is_described_and_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topo", "schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json_schema()
    assert printed["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    for form in (printed, *printed["$defs"].values()):
        assert form["description"]
        for name, described in form["properties"].items():
            assert described.get("description") or "$ref" in described, name
    assert main(["topo", "schema", "--format", "table"]) == 0
    table = capsys.readouterr().out
    assert all(line.startswith(key.path) for line, key in zip(table.splitlines(), keys(), strict=True))


def test_the_page_has_every_key_once_with_its_default() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (.*) \| ([^|]*) \|$", PAGE, flags=re.MULTILINE)
    documented = {path: default.split(":")[0].strip("` ") for path, _, default in rows}
    assert documented | {key.path: key.default for key in keys()} == documented
    section = [path for path, _, _ in rows if re.match(r"(hosts|switches|cables|events)[.\[]", path)]
    assert set(section) - {"switches.NAME"} == {key.path for key in keys() if re.search(r"[.\[]", key.path)}
    assert len(set(section)) == len(section)


def test_defaults_are_those_of_the_graph() -> None:
    shape, form = HostShape(), HostsForm.model_validate({"count": 1})
    for name in ("gpus", "gpus_per_hca", "gpus_per_pcie_switch", "pcie_rate", "nvlink_rate", "nvswitches", "gpudirect"):
        assert getattr(form, name) == getattr(shape, name), name
    assert form.storage_hcas == 0  # each needs a cable, which a file has to give it
    plain = load_topology(str(ROOT / "examples" / "fabrics" / "two-leaf.yaml"))
    assert (plain.mtu, plain.switch_latency_ns) == (DEFAULT_MTU, DEFAULT_SWITCH_LATENCY_NS)


def test_warnings_are_of_what_can_be_built_but_is_hardly_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "examples" / "fabrics" / "two-leaf.yaml").read_text()
    path = tmp_path / "odd.yaml"
    path.write_text(
        text.replace("rate: 200Gbps", "rate: 200GBps").replace("  spine2:", "  leaf9: {ports: 4}\n  spine2:")
    )
    assert check_fabric_file(str(path)) == []
    first, *others = fabric_file_warnings(str(path))
    assert first.message == "leaf9 has no cable"
    assert {each.message for each in others} == {
        "1600 Gb/s is faster than any cable (800 Gb/s) (did you mean 200Gbps?)"
    }
    assert main(["topo", "validate", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith(f"fauxrdma: warning: {path}:{first.line}:{first.column}: leaf9 has no cable")


def test_the_report_counts_ports_and_cables_and_tells_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(ROOT / "examples" / "fabrics" / "roce-two-tier.yaml")
    assert main(["topo", "validate", path]) == 0
    text = capsys.readouterr().out
    for line in (
        "2:1 oversubscribed",
        "reachability: every HCA reaches every other",
        "  leaf1-leaf2: 6 of 8 ports used (4 to hosts, 2 up)",
        "  spine1-spine2: 2 of 4 ports used (2 down)",
        "  8 cables of 100 Gb/s, 3 m",
        "  4 cables of 100 Gb/s, 20 m",
    ):
        assert line in text, line
    assert main(["topo", "validate", path, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["valid"] is True
    assert sum(switch["used"] for switch in told["switch_ports"]) == 8 + 2 * 4
    assert {(kind["length_m"], kind["count"]) for kind in told["cable_kinds"]} == {(3.0, 8), (20.0, 4)}


def test_json_lists_the_mistakes_of_a_bad_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("name: x\nhosts: {count: 0}\nswitches: {a: {ports: 4}}\ncables: []\n")
    assert main(["topo", "validate", str(path), "--format", "json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert (told["valid"], [(p["line"], p["column"]) for p in told["problems"]]) == (False, [(2, 16), (4, 9)])


def test_islands_are_counted_in_the_part_that_is_used() -> None:
    planes = str(ROOT / "examples" / "fabrics" / "two-planes.yaml")
    assert [len(island) for island in load_topology(planes).members_of_islands()] == [8, 8]
    assert load_topology(planes, nodes=1).islands == 2
