"""What deploy/ and packaging/ hold, as far as it shows without building: manifests say
the flags that the collector has, the Slurm script runs a job to its export, shell scripts are
clean. Images, clusters, wheels and Debian packages: the stages containers and package."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import socket
import subprocess
import tomllib

import pytest

import harness

DEPLOY = harness.ROOT / "deploy"
yaml = pytest.importorskip("yaml")


def documents(path: pathlib.Path) -> list[dict]:
    return [d for d in yaml.safe_load_all(path.read_text()) if d]


def manifests() -> dict[str, dict]:
    listed = documents(DEPLOY / "kubernetes/kustomization.yaml")[0]["resources"]
    return {d["kind"]: d for name in listed for d in documents(DEPLOY / "kubernetes" / name)}


def collector_help() -> str:
    return subprocess.run([harness.BIN / "rankprobed", "--help"], capture_output=True, text=True, timeout=60,
                          check=True).stdout


def test_manifests_fit_each_other():
    found = manifests()
    assert set(found) == {"PersistentVolumeClaim", "Service", "Deployment", "NetworkPolicy", "ServiceMonitor"}
    pod = found["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    for selector in (found["Deployment"]["spec"]["selector"]["matchLabels"], found["Service"]["spec"]["selector"],
                     found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
                     found["ServiceMonitor"]["spec"]["selector"]["matchLabels"]):
        assert selector == labels
    container = pod["spec"]["containers"][0]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert {p["name"]: p["port"] for p in found["Service"]["spec"]["ports"]} == ports
    allowed = {p["port"] for rule in found["NetworkPolicy"]["spec"]["ingress"] for p in rule["ports"]}
    assert allowed == set(ports.values())
    assert found["ServiceMonitor"]["spec"]["endpoints"][0]["port"] in ports
    # One writer: a rolling update would start a second collector on the archive.
    assert found["Deployment"]["spec"]["replicas"] == 1
    assert found["Deployment"]["spec"]["strategy"]["type"] == "Recreate"
    claim = found["PersistentVolumeClaim"]["metadata"]["name"]
    assert {"persistentVolumeClaim": {"claimName": claim}, "name": "archive"} in pod["spec"]["volumes"]
    job = documents(DEPLOY / "kubernetes/job.yaml")[0]["spec"]["template"]
    source = found["NetworkPolicy"]["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert job["metadata"]["labels"] == source
    address = {e["name"]: e["value"] for e in job["spec"]["containers"][0]["env"]}["RANKPROBE_COLLECTOR"]
    assert address == f"{found['Service']['metadata']['name']}:{ports['grpc']}"


def test_flags_in_manifests_exist():
    options = collector_help().split()
    container = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    compose = documents(harness.ROOT / "docker-compose.yml")[0]
    flags = list(container["args"])
    for service in compose["services"].values():
        if service.get("command", [""])[0] == "rankprobed":
            flags += service["command"][1:]
    assert flags
    for flag in flags:
        if flag.startswith("--"):
            assert flag.split("=")[0] in options, flag


def test_compose_services_find_the_collector():
    services = documents(harness.ROOT / "docker-compose.yml")[0]["services"]
    assert set(services) >= {"collector", "trainer0", "trainer1"}
    for name in ("trainer0", "trainer1"):
        host = services[name]["environment"]["RANKPROBE_COLLECTOR"].split(":")[0]
        assert host in services and host in services[name]["depends_on"]


def test_wheel_settings():
    settings = tomllib.loads((harness.ROOT / "agent/python/pyproject.toml").read_text())
    assert settings["build-system"]["build-backend"] == "scikit_build_core.build"
    # Programs and both extensions, or the wheel would lack some.
    assert set(settings["tool"]["scikit-build"]["build"]["targets"]) == {
        "rankprobe_native", "rankprobe_analysis_native", "rankprobed", "rankprobe"}
    listed = [line.split()[1] for line in (harness.ROOT / "packaging/wheel/notices.sh").read_text().splitlines()
              if line.endswith("-dev") and len(line.split()) == 2]
    assert "libgrpc-dev" in listed and len(listed) >= 20


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck")
def test_shell_scripts_are_clean():
    scripts = [p for room in ("deploy", "packaging") for p in (harness.ROOT / room).rglob("*")
               if p.suffix in (".sh", ".sbatch")]
    assert len(scripts) > 5
    result = subprocess.run(["shellcheck", "-x", "-s", "bash", "-S", "warning", "-e", "SC2034,SC2155,SC2164", *map(str, scripts)],
                            capture_output=True, text=True, cwd=harness.ROOT, timeout=300)
    assert result.returncode == 0, result.stdout


SRUN = """#!/bin/bash
# Slurm's srun for one node and two tasks. TERM goes to the tasks.
trap 'kill -TERM $a $b 2>/dev/null' TERM
SLURM_PROCID=0 SLURM_NTASKS=2 "$@" & a=$!
SLURM_PROCID=1 SLURM_NTASKS=2 "$@" & b=$!
code=0
for task in $a $b; do
  wait $task; rc=$?
  while kill -0 $task 2>/dev/null; do wait $task; rc=$?; done
  [ $rc = 0 ] || code=$rc
done
exit $code
"""
TASK = """
import os, sys, time
import numpy, rankprobe
session = rankprobe.Session(os.environ["RANKPROBE_COLLECTOR"], run=os.environ["RANKPROBE_RUN"],
                            rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]),
                            config_json='{"task": "statistics", "level": "L1", "rank": [], "step": [], "dump_path": "d"}')
session.wait_connected(60)
session.start()
session.call("Torch", "add", [numpy.ones(3, numpy.float32)], [])
session.stop()
session.step()
session.close()
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("secured", [True, False])
def test_slurm_job_ends_with_its_export(tmp_path: pathlib.Path, secured: bool):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/srun").write_text(SRUN)
    (tmp_path / "bin/srun").chmod(0o755)
    (tmp_path / "task.py").write_text(TASK)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{harness.BIN}:{os.environ['PATH']}",
                   "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURMD_NODENAME": "localhost",
                   "RANKPROBE_PORT": str(port)}
    environment.update({"RANKPROBE_CERTS": str(DEPLOY / "certs.sh")} if secured else {"RANKPROBE_INSECURE": "yes"})
    result = subprocess.run(["bash", DEPLOY / "slurm/rankprobe.sbatch", "/usr/bin/python3", tmp_path / "task.py", "3"],
                            env=environment, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    directory = tmp_path / "rankprobe-7"
    assert result.returncode == 3, result.stderr + (directory / "collector.log").read_text()
    for rank in range(2):
        dump = json.loads((directory / f"dump/step0/rank{rank}/dump.json").read_text())
        assert "Torch.add.0.forward" in dump["data"]
    text = (directory / "env").read_text()
    assert "RANKPROBE_RUN=job-7" in text and ("operator.token" in text) == secured
    assert directory.stat().st_mode & 0o077 == 0
    # The collector has ended and left the archive.
    subprocess.run([harness.BIN / "rankprobed", "--data-dir", directory / "data", "--rebuild-index"], check=True,
                   capture_output=True, timeout=60)


def test_slurm_script_wants_security_or_to_be_told(tmp_path: pathlib.Path):
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(tmp_path)}
    result = subprocess.run(["bash", DEPLOY / "slurm/rankprobe.sbatch", "true"], env=environment, capture_output=True,
                            text=True, timeout=60, cwd=tmp_path)
    assert result.returncode == 2 and "RANKPROBE_CERTS" in result.stderr


def names(path: str) -> set[str]:
    lines = (harness.ROOT / path).read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def test_debian_packages_build_from_what_is_installed():
    control = (harness.ROOT / "packaging/debian/debian/control").read_text()
    field = control.split("Build-Depends:")[1].split("\nStandards-Version")[0]
    wanted = {name.split()[0] for name in field.replace("\n", " ").split(",")} - {"debhelper-compat"}
    assert wanted <= names("deploy/packages.txt") | names("packaging/packages.txt")
    packages = [line.split()[1] for line in control.splitlines() if line.startswith("Package:")]
    assert packages == ["rankprobe", "librankprobe-dev", "python3-rankprobe"]
    for package in packages:
        assert (harness.ROOT / f"packaging/debian/debian/{package}.install").is_file()
    # The unit starts what the package installs, with the configuration it installs.
    unit = (DEPLOY / "systemd/rankprobed.service").read_text()
    assert "ExecStart=/usr/local/bin/rankprobed --config /etc/rankprobe/rankprobed.json" in unit
    config = json.loads((harness.ROOT / "packaging/debian/debian/rankprobed.json").read_text())
    assert config["listen"].startswith("127.0.0.1:")
