# SPDX-License-Identifier: Apache-2.0
"""deploy/kubernetes by `podman kube play`: the collector with its volume, probes and TLS,
and the two ranks of job.yaml. Not shown here, for Podman has no cluster: that the Service
and the NetworkPolicy route, that a ServiceMonitor is found, that fsGroup is applied."""

from __future__ import annotations

import io
import pathlib
import re
import shutil
import socket
import tarfile
import urllib.request

import pytest
import yaml

import conftest
import manifests
from conftest import ROOT, Collector, podman
from polling import wait_for

NETWORK = "rankprobe-test"
POD = "rankprobe-pod-0"


class Cluster:
    """A network, and what is played in it."""

    def __init__(self, scratch: pathlib.Path):
        self.scratch = scratch
        self.files: list[pathlib.Path] = []

    def play(self, name: str, documents: list[dict], alias: str = "") -> str:
        path = self.scratch / f"{name}.yaml"
        path.write_text(yaml.safe_dump_all(documents))
        if path not in self.files:
            self.files.append(path)
        return podman("kube", "play", "--network", NETWORK + (f":alias={alias}" if alias else ""), path).stdout

    def down(self, name: str) -> None:
        podman("kube", "down", self.scratch / f"{name}.yaml", check=False)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    assert conftest.left_over() == []
    podman("network", "create", NETWORK)
    made = Cluster(tmp_path_factory.mktemp("kube"))
    try:
        yield made
    finally:
        for path in reversed(made.files):
            made.down(path.stem)
        for line in conftest.left_over():
            kind, name = line.split()
            podman(kind, "rm", "--force", name, check=False)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """Directories with the files that the head of kustomization.yaml puts into each Secret."""
    directory = tmp_path_factory.mktemp("tls")
    conftest.command(ROOT / "deploy/certs.sh", directory / "all", "rankprobe")
    made = re.findall(r"create secret generic (\S+) -n NAMESPACE --from-file=\$d/\{(\S+)\}$",
                      (manifests.FOLDER / "kustomization.yaml").read_text(), re.MULTILINE)
    assert len(made) == 2
    for name, files in made:
        (directory / name).mkdir()
        for file in files.split(","):
            shutil.copy(directory / "all" / file, directory / name / file)
    return {name: directory / name for name, _ in made}


@pytest.fixture(scope="module")
def deployed(cluster: Cluster, secrets: dict[str, pathlib.Path]) -> list[dict]:
    """Every manifest of the kustomization, played."""
    found = manifests.resources()
    deployment = manifests.of_kind(found, "Deployment")
    deployment["spec"]["template"]["spec"] = manifests.mount_secrets(
        deployment["spec"]["template"]["spec"], secrets, cluster.scratch)
    service = manifests.of_kind(found, "Service")["metadata"]["name"]
    cluster.play("collector", found, alias=service)
    return found


@pytest.fixture
def collector(deployed: list[dict]) -> Collector:
    return Collector(f"{POD}-collector")


def container_of(deployed: list[dict]) -> dict:
    return manifests.of_kind(deployed, "Deployment")["spec"]["template"]["spec"]["containers"][0]


def address_of_pod() -> str:
    infra = podman("pod", "inspect", POD, "--format", "{{.InfraContainerID}}").stdout.strip()
    return podman("inspect", infra, "--format", f'{{{{(index .NetworkSettings.Networks "{NETWORK}").IPAddress}}}}').stdout.strip()


def test_probes_pass(collector: Collector, deployed: list[dict]):
    container = container_of(deployed)
    startup, ready = (container[name]["exec"]["command"] for name in ("startupProbe", "readinessProbe"))
    wait_for(lambda: podman("exec", collector.container, *startup, check=False).returncode == 0, 60,
             lambda: "the startup probe: " + podman("logs", collector.container, check=False).stderr)
    podman("exec", collector.container, *ready, seconds=60)
    with socket.create_connection((address_of_pod(), container["livenessProbe"]["tcpSocket"]["port"]), timeout=30):
        pass


def test_metrics_are_served_beyond_the_pod(collector: Collector, deployed: list[dict]):
    monitor = manifests.of_kind(deployed, "ServiceMonitor")["spec"]["endpoints"][0]
    port = {p["name"]: p["containerPort"] for p in container_of(manifests.resources())["ports"]}[monitor["port"]]
    wait_for(lambda: collector.cli("runs", check=False).returncode == 0, 60, "the collector")
    with urllib.request.urlopen(f"http://{address_of_pod()}:{port}{monitor['path']}", timeout=30) as answer:
        assert "rankprobe_sessions" in answer.read().decode()


def test_the_root_is_read_only_and_the_user_not_root(collector: Collector):
    assert podman("exec", collector.container, "id", "-u").stdout.strip() == "999"
    assert podman("exec", collector.container, "touch", "/usr/local/x", check=False).returncode != 0


def test_without_a_token_nobody_is_let_in(collector: Collector, deployed: list[dict], secrets: dict[str, pathlib.Path]):
    wait_for(lambda: collector.cli("runs", check=False).returncode == 0, 60, "the collector")
    ca = secrets["rankprobe-tls"] / "ca.pem"
    words = ["run", "--rm", "--network", NETWORK, "--volume", f"{ca}:/ca.pem:ro", "--user", "0", "rankprobe",
             "rankprobe", "--collector", "rankprobe:7411", "--tls-ca", "/ca.pem", "runs"]
    result = podman(*words, check=False)
    # TLS stands, by the name of the Service: what is refused is the caller.
    assert result.returncode == 5, (result.returncode, result.stdout, result.stderr)


@pytest.fixture
def training(cluster: Cluster, collector: Collector, secrets: dict[str, pathlib.Path]) -> Collector:
    """job.yaml's claim and its pods, training."""
    found = manifests.documents("job.yaml")
    pods = manifests.pods_of(manifests.of_kind(found, "Job"), secrets, cluster.scratch)
    wait_for(lambda: collector.cli("runs", check=False).returncode == 0, 60, "the collector")
    cluster.play("claim", [manifests.of_kind(found, "PersistentVolumeClaim")])
    for pod in pods:
        cluster.play(pod["metadata"]["name"], [pod])
    return collector


def test_ranks_of_a_job_are_switched_exported_and_outlive_a_restart(cluster: Cluster, training: Collector, deployed: list[dict]):
    collector = training
    wait_for(lambda: collector.connected("training") == {0, 1}, 180,
             lambda: "both ranks: " + "".join(podman("logs", f"training-{i}-rank", check=False).stderr for i in range(2)))
    wait_for(lambda: collector.step("training") > 2, 180, "training")
    collector.cli("enable", "--run", "training", "--for-steps", "2")
    first = collector.step("training")
    wait_for(lambda: collector.step("training") > first + 5, 180, "the steps that are recorded")
    podman("kill", "--signal", "KILL", "training-1-rank")
    wait_for(lambda: 1 not in collector.connected("training"), 120, "the collector to miss rank 1")

    def exported() -> list[str]:
        tar = collector.cli("export", "--run", "training", "--tar", "-", text=False).stdout
        with tarfile.open(fileobj=io.BytesIO(tar)) as file:
            return sorted(name for name in file.getnames() if name.endswith("dump.json"))

    before = exported()
    assert len(before) == 4 and {name.split("/")[-2] for name in before} == {"rank0", "rank1"}, before
    # The pod goes, the claim's volume stays.
    cluster.down("collector")
    claim = manifests.of_kind(deployed, "PersistentVolumeClaim")["metadata"]["name"]
    assert claim in podman("volume", "ls", "--format", "{{.Name}}").stdout.split()
    # Podman refuses a claim that is there; a cluster keeps it.
    cluster.play("collector", [d for d in deployed if d["kind"] != "PersistentVolumeClaim"], alias="rankprobe")
    wait_for(lambda: collector.cli("runs", check=False).returncode == 0, 120, "the collector over the same volume")
    assert exported() == before
