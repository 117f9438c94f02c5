# SPDX-License-Identifier: Apache-2.0
"""deploy/kubernetes as `podman kube play` takes it.

Podman makes Pods, Deployments and PersistentVolumeClaims, and passes over the other kinds.
What a cluster would do and Podman 4.3 does not is done here: a Secret's files have the mode and
group that the pod asks for, a Job becomes its pods, $(NAME) in arguments becomes its value.
What Podman does and a cluster does not is left out: a containerPort is published on the host.
"""

from __future__ import annotations

import copy
import os
import pathlib
import re
import shutil
from typing import Any

import yaml

from conftest import ROOT

FOLDER = ROOT / "deploy/kubernetes"
UID = "5f0c7a52-job"  # what the cluster calls the job


def documents(name: str) -> list[dict]:
    return [d for d in yaml.safe_load_all((FOLDER / name).read_text()) if d]


def resources() -> list[dict]:
    """All that `kubectl apply -k` would make."""
    return [d for name in documents("kustomization.yaml")[0]["resources"] for d in documents(name)]


def of_kind(found: list[dict], kind: str) -> dict:
    return next(d for d in found if d["kind"] == kind)


def mount_secrets(pod: dict, secrets: dict[str, pathlib.Path], scratch: pathlib.Path) -> dict:
    """The pod with each Secret replaced by a directory of its files, as the kubelet writes them, and nothing published."""
    pod = copy.deepcopy(pod)
    for container in pod["containers"]:
        container.pop("ports", None)
    group = pod.get("securityContext", {}).get("fsGroup", 0)
    for volume in pod["volumes"]:
        secret = volume.pop("secret", None)
        if secret is None:
            continue
        source = secrets[secret["secretName"]]
        directory = scratch / volume["name"]
        directory.mkdir(mode=0o755)
        items = secret.get("items") or [{"key": p.name, "path": p.name} for p in source.iterdir()]
        for item in items:
            shutil.copy(source / item["key"], directory / item["path"])
            os.chmod(directory / item["path"], secret.get("defaultMode", 0o644))
            os.chown(directory / item["path"], 0, group)
        volume["hostPath"] = {"path": str(directory), "type": "Directory"}
    return pod


def pods_of(job: dict, secrets: dict[str, pathlib.Path], scratch: pathlib.Path) -> list[dict]:
    """One pod an index, with the variable and the labels that the Job controller gives it."""
    pods = []
    for index in range(job["spec"]["completions"]):
        name = f"{job['metadata']['name']}-{index}"
        template = copy.deepcopy(job["spec"]["template"])
        (scratch / name).mkdir()
        spec: dict[str, Any] = mount_secrets(template["spec"], secrets, scratch / name)
        labels = {**template["metadata"]["labels"], "batch.kubernetes.io/controller-uid": UID}
        for container in spec["containers"]:
            container["env"].append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})
            values = {e["name"]: e.get("value", UID) for e in container["env"]}
            container["args"] = [re.sub(r"\$\((\w+)\)", lambda m: values[m[1]], a) for a in container["args"]]
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec})
    return pods
