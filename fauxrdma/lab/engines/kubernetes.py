"""A lab as Kubernetes manifests: a headless Service, the subnet manager as a StatefulSet, and the nodes as an indexed
Job, or as a StatefulSet where the lab has no job."""

from __future__ import annotations

from typing import Any

from fauxrdma.errors import ConfigError
from fauxrdma.lab.engines.parts import (
    FOLDER,
    MANAGER,
    MANAGER_CHECK,
    MANAGER_PORT,
    NODE_CHECK,
    check_exportable,
    lab_files,
    manager_command,
    node_command,
    node_environment,
)
from fauxrdma.lab.file import LabFile

__all__ = ["kubernetes"]

_INDEX = "batch.kubernetes.io/job-completion-index"
_MAX_CONFIG_BYTES = 1_000_000
"""Of a ConfigMap: 1 MiB (kubernetes.io/docs/concepts/configuration/configmap)."""


def kubernetes(lab_file: LabFile) -> list[dict[str, Any]]:
    """The manifests, for ``kubectl apply``. Pods are called NAME-n-0, NAME-n-1, ... and find each other by those names
    in the domain of the Service. Raises ConfigError for a lab that cannot be exported, and for too large files."""
    check_exportable(lab_file)
    form = lab_file.form
    master = f"{form.name}-n-{lab_file.placement.places[0].node}.{form.name}"
    manager = f"{form.name}-{MANAGER}-0.{form.name}"
    node = {
        "name": "node",
        "image": form.image,
        "command": node_command(lab_file, "$(FAUXRDMA_NODE)", manager, master),
        "env": [*_variables(node_environment()), _node_variable(is_job=form.job is not None)],
        "readinessProbe": _probe(NODE_CHECK),
        "resources": {"limits": {"cpu": f"{form.resources.cpus:g}", "memory": str(form.resources.memory)}},
    }
    managed = {
        "name": MANAGER,
        "image": form.image,
        "command": manager_command(lab_file),
        "ports": [{"name": "control", "containerPort": MANAGER_PORT}],
        "readinessProbe": _probe(MANAGER_CHECK),
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
    }
    nodes = f"{form.name}-n"
    if form.job is None:
        workload = _stateful_set(lab_file, nodes, form.nodes, _pod(lab_file, "node", node))
    else:
        pod = _pod(lab_file, "node", node)
        pod["spec"] = {**pod["spec"], "restartPolicy": "Never", "subdomain": form.name}
        workload = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": _metadata(lab_file, nodes),
            "spec": {
                "completions": form.nodes,
                "parallelism": form.nodes,
                "completionMode": "Indexed",  # gives each pod its number, and a host name with it
                "backoffLimit": 0,  # a rank that comes back finds the others gone
                "template": pod,
            },
        }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(lab_file, form.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # nodes are ready only when they have found each other
            "selector": {"app.kubernetes.io/instance": form.name},
            "ports": [{"name": "control", "port": MANAGER_PORT}],
        },
    }
    return [
        _config_map(lab_file),
        service,
        _stateful_set(lab_file, f"{form.name}-{MANAGER}", 1, _pod(lab_file, MANAGER, managed)),
        workload,
    ]


def _config_map(lab_file: LabFile) -> dict[str, Any]:
    files = lab_files(lab_file)
    data = {_key(name): path.read_text() for name, path in files.items()}
    if sum(map(len, data.values())) > _MAX_CONFIG_BYTES:
        raise ConfigError(f"{lab_file.path}: its files are larger than a ConfigMap: put the script into the image")
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(lab_file, lab_file.form.name), "data": data}


def _key(name: str) -> str:
    """Keys of a ConfigMap hold no slash."""
    return name.replace("/", "..")


def _metadata(lab_file: LabFile, name: str) -> dict[str, Any]:
    return {"name": name, "labels": _labels(lab_file)}


def _labels(lab_file: LabFile) -> dict[str, str]:
    return {"app.kubernetes.io/name": "fauxrdma", "app.kubernetes.io/instance": lab_file.form.name}


def _stateful_set(lab_file: LabFile, name: str, replicas: int, pod: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(lab_file, name),
        "spec": {
            "serviceName": lab_file.form.name,
            "replicas": replicas,
            "podManagementPolicy": "Parallel",  # nodes wait for each other
            "selector": {"matchLabels": pod["metadata"]["labels"]},
            "template": pod,
        },
    }


def _pod(lab_file: LabFile, component: str, container: dict[str, Any]) -> dict[str, Any]:
    secure = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    items = [{"key": _key(name), "path": name} for name in lab_files(lab_file)]
    return {
        "metadata": {"labels": {**_labels(lab_file), "app.kubernetes.io/component": component}},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000},
            "containers": [
                {
                    **container,
                    "workingDir": FOLDER,
                    "securityContext": secure,
                    "volumeMounts": [{"name": "lab", "mountPath": FOLDER, "readOnly": True}],
                }
            ],
            "volumes": [{"name": "lab", "configMap": {"name": lab_file.form.name, "items": items}}],
        },
    }


def _variables(environment: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in environment.items()]


def _node_variable(*, is_job: bool) -> dict[str, Any]:
    """The number of the pod, which its controller writes on it."""
    label = f"metadata.annotations['{_INDEX}']" if is_job else "metadata.labels['apps.kubernetes.io/pod-index']"
    return {"name": "FAUXRDMA_NODE", "valueFrom": {"fieldRef": {"fieldPath": label}}}


def _probe(command: list[str]) -> dict[str, Any]:
    return {"exec": {"command": command}, "periodSeconds": 5, "timeoutSeconds": 5}
