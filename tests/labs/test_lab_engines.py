"""Labs as input of compose, Swarm, Kubernetes and Slurm: what must be in it for the nodes to find each other."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from fauxrdma.errors import ConfigError
from fauxrdma.lab.engines import ENGINES, exported
from fauxrdma.lab.file import LabFile, load_lab

LAB = """
name: digits
fabric: fat-tree
nodes: 3
gpus: 2
on_nodes: '2,0'
seed: 5
image: registry.example/fauxrdma:1
resources: {cpus: 1.5, memory: 1GiB}
job: {command: jobs/train.py --epochs 1, env: {A: '1'}}
"""


@pytest.fixture
def lab(tmp_path: Path) -> LabFile:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "train.py").write_text("print('loss=1')\n")
    (tmp_path / "digits.yaml").write_text(LAB)
    return load_lab(tmp_path / "digits.yaml")


def _documents(lab: LabFile, engine: str) -> list[dict[str, Any]]:
    """As a reader of YAML sees them."""
    return list(YAML(typ="safe").load_all(exported(lab, engine)))


@pytest.mark.parametrize("engine", ["compose", "swarm", "kubernetes"])
def test_what_is_written_is_what_was_made(lab: LabFile, engine: str) -> None:
    assert _documents(lab, engine) == ENGINES[engine][1](lab)


def test_compose(lab: LabFile) -> None:
    (content,) = _documents(lab, "compose")
    services = content["services"]
    assert list(services) == ["subnet-manager", "n0", "n1", "n2"]
    assert services["subnet-manager"]["entrypoint"] == [
        "fauxrdma-subnet-manager", "fat-tree", "--nodes", "3", "--gpus", "2", "--nodes-in-use", "2",
        "--profile", "ibta", "--clock", "paced", "--dilation", "auto", "--seed", "5",
        "--listen", "0.0.0.0:7471", "--verbose",
    ]  # fmt: skip
    n1 = services["n1"]
    assert n1["entrypoint"] == [
        "fauxrdma", "lab", "node", "/lab/digits.yaml", "--node", "1", "--subnet-manager", "subnet-manager:7471",
        "--master", "n2:29500",  # where rank 0 is
    ]  # fmt: skip
    assert n1["depends_on"] == {"subnet-manager": {"condition": "service_healthy"}}
    assert (n1["cpus"], n1["mem_limit"]) == (1.5, "1073741824b")
    for service in services.values():
        assert service["init"] is True
        assert service["user"] == "1000:1000"
        assert service["networks"] == ["fabric"]
        assert service["cap_drop"] == ["ALL"]
        assert service["healthcheck"]["test"][0] == "CMD"
        assert service["image"] == "registry.example/fauxrdma:1"
        assert service["volumes"] == [{"type": "bind", "source": ".", "target": "/lab", "read_only": True}]
    assert content["networks"] == {"fabric": {"internal": True}}


def test_swarm_takes_files_along_and_keeps_only_what_a_stack_may_say(lab: LabFile) -> None:
    (content,) = _documents(lab, "swarm")
    n0 = content["services"]["n0"]
    assert n0["deploy"]["endpoint_mode"] == "dnsrr"
    assert n0["deploy"]["restart_policy"] == {"condition": "none"}
    assert n0["deploy"]["resources"]["limits"] == {"cpus": "1.5", "memory": "1073741824b", "pids": 1024}
    # docs.docker.com/reference/cli/docker/stack/deploy: these are ignored or refused by stacks.
    assert not {"depends_on", "restart", "cpus", "mem_limit", "security_opt", "volumes"} & n0.keys()
    assert {each["target"] for each in n0["configs"]} == {"/lab/digits.yaml", "/lab/jobs/train.py"}
    assert {each["source"] for each in n0["configs"]} == content["configs"].keys()
    assert {each["file"] for each in content["configs"].values()} == {"./digits.yaml", "./jobs/train.py"}
    before = set(content["configs"])
    (lab.folder / "jobs" / "train.py").write_text("print('loss=2')\n")
    assert len(before - set(_documents(lab, "swarm")[0]["configs"])) == 1  # other content, another config


def test_kubernetes(lab: LabFile) -> None:
    config, service, manager, job = _documents(lab, "kubernetes")
    assert [each["kind"] for each in (config, service, manager, job)] == [
        "ConfigMap", "Service", "StatefulSet", "Job"
    ]  # fmt: skip
    assert config["data"]["jobs..train.py"] == "print('loss=1')\n"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert manager["spec"]["serviceName"] == service["metadata"]["name"] == "digits"
    assert manager["spec"]["selector"]["matchLabels"] == manager["spec"]["template"]["metadata"]["labels"]
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (3, 3, "Indexed")
    pod = spec["template"]["spec"]
    assert (pod["restartPolicy"], pod["subdomain"]) == ("Never", "digits")
    (container,) = pod["containers"]
    command = container["command"]
    assert command[command.index("--node") + 1] == "$(FAUXRDMA_NODE)"
    # A pod of an indexed Job has the host name JOB-INDEX, and with the subdomain the name JOB-INDEX.SERVICE.
    assert command[command.index("--master") + 1] == "digits-n-2.digits:29500"
    assert command[command.index("--subnet-manager") + 1] == "digits-subnet-manager-0.digits:7471"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["volumes"][0]["configMap"]["items"] == [
        {"key": "digits.yaml", "path": "digits.yaml"}, {"key": "jobs..train.py", "path": "jobs/train.py"}
    ]  # fmt: skip
    labels = spec["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= manager["spec"]["template"]["metadata"]["labels"].items()


def test_slurm(lab: LabFile) -> None:
    script = exported(lab, "slurm")
    assert re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE) == [
        "--job-name=fauxrdma-digits", "--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=2", "--mem=1048576K",
    ]  # fmt: skip
    assert 'master=$(address "${hosts[2]}")' in script  # where rank 0 is
    assert f"cd {lab.folder}\n" in script
    assert '--listen "0.0.0.0:$manager_port" --verbose --die-with-parent' in script
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_without_a_job_nodes_stay(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text("name: idle\nfabric: fat-tree\n")
    lab = load_lab(tmp_path / "lab.yaml")
    *_, nodes = _documents(lab, "kubernetes")
    assert nodes["kind"] == "StatefulSet"
    assert nodes["spec"]["replicas"] == 2
    assert nodes["spec"]["template"]["spec"]["containers"][0]["command"][-1] == "--no-job"
    assert _documents(lab, "compose")[0]["services"]["n0"]["entrypoint"][-1] == "--no-job"


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("clock: virtual\n", "virtual time is kept for processes of one machine"),
        ("job: {command: ../train.py}\n", "../train.py is not below the folder of the lab file"),
    ],
)
def test_what_containers_cannot_do_is_said(tmp_path: Path, lines: str, complaint: str) -> None:
    (tmp_path / "lab.yaml").write_text("name: x\nfabric: fat-tree\n" + lines)
    with pytest.raises(ConfigError, match=complaint):
        exported(load_lab(tmp_path / "lab.yaml"), "compose")
