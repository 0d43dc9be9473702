"""The lab file: what is in it, and mistakes shown where they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.lab.file import json_schema, keys, load_lab, load_lab_text
from fauxrdma.lab.file.template import lab_template

GOOD = "name: x\nfabric: fat-tree\n"


def test_everything_a_lab_file_can_say(tmp_path: Path) -> None:
    (tmp_path / "places.txt").write_text("1 0\n0 3\n")
    path = tmp_path / "lab.yaml"
    path.write_text(
        "name: digits\nfabric: fat-tree\nnodes: 3\ngpus: 2\nplacement: places.txt\ntransport: rocev2\nrouting: ecmp\n"
        "clock: paced\ndilation: 500\nseed: 7\nprofile: cx7-ndr\nalgorithm: ring\ndriver: process\nimage: mine:1\n"
        "resources: {cpus: 1.5, memory: 512MiB}\njob:\n  command: train.py --name 'a b'\n  env: {SEED: '1'}\n"
        "thresholds:\n  - all_reduce.busbw >= 0.1 * line_rate\n"
    )
    lab = load_lab(path)
    assert lab.form.job is not None
    assert lab.form.job.command == ["train.py", "--name", "a b"]
    assert lab.form.job.env == {"SEED": "1"}
    assert lab.form.resources.memory == 512 * 2**20
    assert lab.form.dilation == "500"
    assert lab.fabric == "fat-tree,transport=rocev2"
    assert lab.topology.transport == "rocev2"
    assert lab.topology.hosts == 3
    assert [(place.node, place.gpu) for place in lab.placement.places] == [(1, 0), (0, 3)]  # a path beside the file


def test_a_fabric_file_beside_the_lab_file(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(
        "name: mine\nhosts: {count: 2, gpus: 2}\nswitches: {leaf1: {ports: 8}}\n"
        "cables:\n  - {from: n*.hca*, to: leaf1, rate: 100Gbps, length: 2m}\n"
    )
    (tmp_path / "lab.yaml").write_text("name: x\nfabric: my.yaml\non_nodes: '1'\n")
    lab = load_lab(tmp_path / "lab.yaml")
    assert lab.fabric == str(tmp_path / "my.yaml")
    assert lab.placement.nodes == [1]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nam: x\nfabric: fat-tree\n", "lab.yaml:1:1: unknown key 'nam' (did you mean name?)"),
        ("fabric: fat-tree\n", "lab.yaml:1:1: 'name' is missing here: add name: my-lab"),
        ("name: My Lab\nfabric: fat-tree\n", "lab.yaml:1:7: 'name': 'My Lab' cannot be the name"),
        ("name: x\nfabric: fat-tre\n", "lab.yaml:2:9: unknown fabric 'fat-tre': did you mean 'fat-tree'?"),
        ("name: x\nfabric: none.yaml\n", "lab.yaml:2:9: "),
        (GOOD + "hosts: 2\n", "lab.yaml:3:1: unknown key 'hosts' (did you mean nodes?)"),
        (GOOD + "nodes: 3000\n", "lab.yaml:3:8: fat-tree cannot hold 3000 nodes"),
        (GOOD + "nodes: '2'\n", "lab.yaml:3:8: 'nodes' must be a whole number, not '2' in quotes (did you mean 2?)"),
        (GOOD + "gpus: 9\n", "lab.yaml:3:7: fat-tree has 8 GPUs per node"),
        (GOOD + "placement: blok\n", "lab.yaml:3:12: unknown placement 'blok': did you mean 'block'?"),
        (GOOD + "on_nodes: '7'\n", "lab.yaml:3:11: fat-tree has no node 7"),
        (GOOD + "transport: roce\n", "(did you mean rocev2?)"),
        (GOOD + "dilation: 0.5\n", "lab.yaml:3:11: 'dilation': must be auto or a number k >= 1"),
        (GOOD + "profile: cx9\n", "lab.yaml:3:10: "),
        (GOOD + "resources:\n  memory: 2\n", "lab.yaml:4:11: 'memory': 2 is not a size: write the unit"),
        (GOOD + "resources: {cpus: 0}\n", "lab.yaml:3:19: 'cpus' must be more than 0, not 0"),
        (GOOD + "job: train.py\n", "lab.yaml:3:6: 'job' must be a mapping"),
        (GOOD + "job:\n  cmd: train.py\n", "lab.yaml:4:3: unknown key 'cmd' (did you mean command?)"),
        (GOOD + "job:\n  command: 'a \"b'\n", "close the quote"),
        (GOOD + "job: {command: a, env: {A-B: c}}\n", "'A-B' is no name of a variable"),
        (GOOD + "thresholds:\n  - stp < 5ms\n", "lab.yaml:4:5: 'entry 1': threshold 'stp < 5ms'"),
        (GOOD + "events:\n  - {at: 5ms, fault: link-down, link: n9.hca1}\n", "lab.yaml:4:"),
        (GOOD + "clock: virtual\ndriver: compose\n", "lab.yaml:3:8: virtual time is kept for processes"),
        ("- a\n", "a lab needs a name and a fabric"),
    ],
)
def test_a_mistake_is_shown_where_it_is(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_lab_text("lab.yaml", text)
    assert complaint in str(error.value)
    assert str(error.value).startswith("lab.yaml:")


def test_the_template_is_a_lab_file_with_the_command_as_it_was() -> None:
    command = ["it's.py", "--text", "two words", "#no: comment"]
    lab = load_lab_text("lab.yaml", lab_template("mine", "seed-rail8", 3, 2, command))
    assert (lab.form.name, lab.form.nodes, lab.form.gpus) == ("mine", 3, 2)
    assert lab.form.job is not None
    assert lab.form.job.command == command


def test_the_schema_knows_every_key() -> None:
    schema = json_schema()
    top = {key.path.partition(".")[0] for key in keys()}
    assert set(schema["properties"]) == top
    assert schema["properties"]["nodes"]["minimum"] == 1
    assert [each["type"] for each in schema["$defs"]["JobForm"]["properties"]["command"]["anyOf"]] == [
        "array",
        "string",
    ]
    assert "pattern" in schema["$defs"]["ResourcesForm"]["properties"]["memory"]
    assert all(key.description for key in keys())
