# SPDX-License-Identifier: Apache-2.0
"""Contents of deploy/ and packaging/, as far as they can be tested without building: manifests say
the flags that the collector has, the Slurm script runs a job to its export, shell scripts are
clean. Images, clusters, wheels and Debian packages: the stages containers and package."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import tomllib

import pytest

import harness

from page_client import PageClient
from ports import free_port

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
    (job,) = [d["spec"]["template"] for d in documents(DEPLOY / "kubernetes/job.yaml") if d["kind"] == "Job"]
    source = found["NetworkPolicy"]["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert job["metadata"]["labels"] == source
    address = {e["name"]: e.get("value") for e in job["spec"]["containers"][0]["env"]}["RANKPROBE_COLLECTOR"]
    assert address == f"{found['Service']['metadata']['name']}:{ports['grpc']}"


def test_the_page_of_the_manifest_answers_by_its_names(tmp_path: pathlib.Path):
    """The collector with the very flags of the pod, but for places: the page has TLS, asks for a token, and is called as the service and the
    forwarded port are."""
    found = manifests()
    container = found["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    said = dict(flag[2:].split("=", 1) for flag in container["args"])
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert {name: int(said[flag].rpartition(":")[2]) for name, flag in (("grpc", "listen"), ("web", "web-listen"), ("metrics", "metrics-port"))} == ports
    service = found["Service"]["metadata"]["name"]
    subprocess.run([DEPLOY / "certs.sh", tmp_path / "tls", service, f"{service}.NAMESPACE.svc"], check=True, capture_output=True, timeout=120)
    # As a secret is mounted: every file is a link.
    (tmp_path / "mounted").mkdir()
    for item in secret_of(found["Deployment"]["spec"]["template"])["items"]:
        (tmp_path / "mounted" / item["path"]).symlink_to(tmp_path / "tls" / item["key"])
    mount = next(m["mountPath"] for m in container["volumeMounts"] if m["name"] == "tls")
    places = {**said, "listen": "127.0.0.1:0", "web-listen": "127.0.0.1:0", "metrics-port": "0", "metrics-host": "127.0.0.1", "data-dir": str(tmp_path / "data")}
    flags = [f"--{name}={value.replace(mount, str(tmp_path / 'mounted'))}" for name, value in places.items()]
    log = tmp_path / "log"
    with open(log, "w") as out:
        process = subprocess.Popen([harness.BIN / "rankprobed", *flags], stdout=out, stderr=out)
    try:
        page = re.compile(r"^rankprobed serves its page on https://(\S+):(\d+)/$", re.M)
        harness.wait_for(lambda: page.search(log.read_text()) or process.poll() is not None, 60, "the page")
        port = page.search(log.read_text())[2]
        token = (tmp_path / "tls" / "viewer.token").read_text().strip()
        client = PageClient(f"https://localhost:{port}", token, tmp_path / "tls" / "ca.pem")
        assert client.about()["caller"]["role"] == "viewer" and client.about()["jobs"] is True
        for host, status in ((service, 200), (f"{service}.NAMESPACE.svc", 200), (f"{service}.namespace.svc", 200), ("evil.example", 403)):
            assert client.post("ArchiveService/ListRuns", {}, Host=f"{host}:{port}").status == status, host
        assert PageClient(client.origin, None, tmp_path / "tls" / "ca.pem").post("ArchiveService/ListRuns", {}).status == 401
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()


def secret_of(template: dict) -> dict:
    (secret,) = [v["secret"] for v in template["spec"]["volumes"] if "secret" in v]
    return secret


def test_secrets_hold_what_is_needed_and_no_more():
    """Whoever may start a rank may read its secret: the agent's token is all there is to take."""
    collector = manifests()["Deployment"]["spec"]["template"]
    (job,) = [d["spec"]["template"] for d in documents(DEPLOY / "kubernetes/job.yaml") if d["kind"] == "Job"]
    wanted = {}
    for template in (collector, job):
        secret, container = secret_of(template), template["spec"]["containers"][0]
        listed = {item["key"] for item in secret["items"]}
        assert all(item["key"] == item["path"] for item in secret["items"])
        (mount,) = [m["mountPath"] for m in container["volumeMounts"] if m["name"] == "tls"]
        said = [*container["args"], *(str(e.get("value")) for e in container["env"])]
        assert {text.rpartition("/")[2] for text in said if f"{mount}/" in text} == listed
        wanted[secret["secretName"]] = listed
    assert wanted["rankprobe-agent"] == {"ca.pem", "agent.token"} and len(wanted) == 2
    for path in ("docs/packaging.md", "deploy/kubernetes/kustomization.yaml"):
        made = re.findall(r"create secret generic (\S+) -n NAMESPACE --from-file=\$d/\{(\S+)\}$",
                          (harness.ROOT / path).read_text(), re.MULTILINE)
        assert {name: set(files.split(",")) for name, files in made} == wanted, path


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


def fleet(kind: str) -> dict[str, dict]:
    """Root and leaves of deploy/kubernetes/scale, or with a leaf on each node, by their names."""
    folder = DEPLOY / "kubernetes"
    files = [folder / "scale/root.yaml", folder / ("scale/leaf.yaml" if kind == "StatefulSet" else "leaf_per_node/leaf.yaml")]
    return {d["metadata"]["name"]: d for path in files for d in documents(path) if d["kind"] in ("StatefulSet", "DaemonSet")}


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
def test_manifests_of_many_collectors_fit_each_other(kind: str):
    folder = DEPLOY / "kubernetes"
    listed = documents(folder / "scale/kustomization.yaml")[0]["resources"]
    assert set(listed) == {p.name for p in (folder / "scale").glob("*.yaml")} - {"kustomization.yaml"}
    assert documents(folder / "leaf_per_node/kustomization.yaml")[0]["resources"] == ["../scale", "leaf.yaml"]
    found = fleet(kind)
    assert found["rankprobe-leaf"]["kind"] == kind and found["rankprobe-root"]["spec"]["replicas"] == 1
    services = {d["metadata"]["name"]: d for name in listed for d in documents(folder / "scale" / name) if d["kind"] == "Service"}
    policies = {d["metadata"]["name"]: d for d in documents(folder / "scale/network_policy.yaml")}
    options = collector_help().split()
    secrets = {}
    for name, workload in found.items():
        pod = workload["spec"]["template"]
        labels, container = pod["metadata"]["labels"], pod["spec"]["containers"][0]
        assert workload["spec"]["selector"]["matchLabels"] == labels == policies[name]["spec"]["podSelector"]["matchLabels"]
        for flag in container["args"]:
            assert flag.split("=")[0] in options, flag
        secret = secret_of(pod)
        keys = {item["key"] for item in secret["items"]}
        said = [*container["args"], *(str(e.get("value")) for e in container["env"])]
        assert {text.rpartition("/")[2] for text in said if "/etc/rankprobe/tls/" in text} == keys
        secrets[secret["secretName"]] = keys
        # Variables of arguments are there; the store's are of one secret.
        env = {e["name"]: e for e in container["env"]}
        assert set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))) <= set(env)
        assert {e["valueFrom"]["secretKeyRef"]["name"] for e in env.values() if "secretKeyRef" in e.get("valueFrom", {})} == {"rankprobe-store"}
        assert int(next(f for f in container["args"] if f.startswith("--listen=")).rpartition(":")[2]) in {p["containerPort"] for p in container["ports"]}
    # The head of the kustomization makes these secrets; the agents' is that of job.yaml.
    made = re.findall(r"create secret generic (\S+) -n NAMESPACE --from-file=\$d/\{(\S+)\}$", (folder / "scale/kustomization.yaml").read_text(), re.MULTILINE)
    assert {name: set(files.split(",")) for name, files in made} == {**secrets, "rankprobe-agent": {"ca.pem", "agent.token"}}
    said = dict(flag[2:].split("=", 1) for flag in found["rankprobe-leaf"]["spec"]["template"]["spec"]["containers"][0]["args"] if "=" in flag)
    # Ranks of job.yaml and leaves come to the same name: the root's service.
    assert said["root"] == "rankprobe:7411" and services["rankprobe"]["spec"]["selector"] == found["rankprobe-root"]["spec"]["selector"]["matchLabels"]
    if kind == "StatefulSet":
        assert said["advertise"] == f"$(SELF).{found['rankprobe-leaf']['spec']['serviceName']}:7411" and "rankprobe-leaf" in services


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
def test_a_leaf_of_the_manifests_comes_to_its_root(tmp_path: pathlib.Path, kind: str):
    """Both with the very flags of their pods, but for places: TLS, tokens, and a store that is a directory."""
    subprocess.run([DEPLOY / "certs.sh", tmp_path / "tls", "rankprobe"], check=True, capture_output=True, timeout=120)
    (tmp_path / "objects").mkdir()
    started: list[tuple[subprocess.Popen, pathlib.Path]] = []
    root_port = None
    try:
        for name, workload in fleet(kind).items():
            container = workload["spec"]["template"]["spec"]["containers"][0]
            port_file, log = tmp_path / f"{name}.port", tmp_path / f"{name}.log"
            places = {"listen": "127.0.0.1:0", "web-listen": "127.0.0.1:0", "metrics-port": "0", "metrics-host": "127.0.0.1",
                      "data-dir": str(tmp_path / name), "root": f"localhost:{root_port}", "advertise": "localhost:1"}
            flags = []
            for flag in container["args"]:
                key, _, value = flag[2:].partition("=")
                value = places.get(key, value).replace("/etc/rankprobe/tls", str(tmp_path / "tls")).replace("$(OBJECT_STORE)", str(tmp_path / "objects"))
                flags.append(f"--{key}={value}" if value else f"--{key}")
            with open(log, "w") as out:
                started.append((subprocess.Popen([harness.BIN / "rankprobed", *flags, f"--port-file={port_file}"], stdout=out, stderr=out), log))
            harness.wait_for(lambda: port_file.exists() and port_file.read_text() or started[-1][0].poll() is not None, 60, name)
            assert started[-1][0].poll() is None, log.read_text()
            root_port = root_port or int(port_file.read_text())
        harness.wait_for(lambda: "root_linked" in started[-1][1].read_text(), 60, lambda: started[-1][1].read_text())
    finally:
        for process, log in reversed(started):
            process.send_signal(signal.SIGTERM)
            assert process.wait(150) == 0, log.read_text()


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
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{harness.BIN}:{os.environ['PATH']}",
                   "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURMD_NODENAME": "localhost"}
    if secured:
        environment["RANKPROBE_CERTS"] = str(DEPLOY / "certs.sh")
    else:  # a port that is asked for
        environment.update({"RANKPROBE_INSECURE": "yes", "RANKPROBE_PORT": str(free_port())})
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


# Two nodes of one name each, and two tasks.
SRUN_OF_LEAVES = """#!/bin/bash
case $1 in --overlap)
  trap 'kill -TERM $a $b 2>/dev/null' TERM
  shift 7
  SLURMD_NODENAME=localhost "$@" & a=$!
  SLURMD_NODENAME=127.0.0.1 "$@" & b=$!
  code=0
  for leaf in $a $b; do
    wait $leaf; rc=$?
    while kill -0 $leaf 2>/dev/null; do wait $leaf; rc=$?; done
    [ $rc = 0 ] || code=$rc
  done
  exit $code ;;
esac
"""


@pytest.mark.parametrize("secured", [True, False])
def test_slurm_job_with_a_leaf_on_each_node(tmp_path: pathlib.Path, secured: bool):
    (tmp_path / "bin").mkdir()
    for name, text in (("srun", SRUN_OF_LEAVES + SRUN.partition("\n")[2]), ("scontrol", "#!/bin/sh\nprintf 'localhost\\n127.0.0.1\\n'\n")):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "objects").mkdir()
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{harness.BIN}:{os.environ['PATH']}", "SLURM_JOB_ID": "7",
                   "SLURM_SUBMIT_DIR": str(tmp_path), "SLURMD_NODENAME": "localhost", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "two",
                   "RANKPROBE_OBJECT_STORE": str(tmp_path / "objects"),
                   **({"RANKPROBE_CERTS": str(DEPLOY / "certs.sh")} if secured else {"RANKPROBE_INSECURE": "yes"})}
    result = subprocess.run(["bash", DEPLOY / "slurm/rankprobe.sbatch", "/usr/bin/python3", tmp_path / "task.py", "3"],
                            env=environment, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    directory = tmp_path / "rankprobe-7"
    logs = "".join(log.read_text() for log in directory.glob("*.log"))
    assert result.returncode == 3 and "leaf has not ended well" not in result.stderr, result.stderr + logs
    # The export is the root's: what both leaves have stored.
    for rank in range(2):
        dump = json.loads((directory / f"dump/step0/rank{rank}/dump.json").read_text())
        assert "Torch.add.0.forward" in dump["data"], logs
    assert len(list(directory.glob("leaf-*-7"))) == 2


# Of the collector what the script sees: a port file, an end by TERM.
STUB_COLLECTOR = """#!/bin/bash
while [ $# -gt 0 ]; do [ "$1" = --port-file ] && echo 4711 >"$2"; shift; done
exec sleep 300
"""


@pytest.fixture
def batch(tmp_path: pathlib.Path):
    """Starts the script with stubs of all it calls; whoever is left of them at the end is ended."""
    started = []

    def start(srun: str, *words: str, collector: str = STUB_COLLECTOR, **environment: str) -> subprocess.Popen:
        for name, text in (("srun", f"#!/bin/bash\n{srun}\n"), ("rankprobed", collector), ("rankprobe", "#!/bin/sh\n")):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(tmp_path),
                       "SLURMD_NODENAME": "here", "RANKPROBE_INSECURE": "yes", "RANKPROBE_EXPORT": "no", **environment}
        started.append(subprocess.Popen(["bash", DEPLOY / "slurm/rankprobe.sbatch", *words], env=environment, text=True,
                                        umask=0o022, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
                                        start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


# Once there are tasks the script is slow: they have always ended before it looks again.
SLOW = """case $0 in *.sbatch) trap '[ -z "${tasks:-}" ] || sleep 0.2' DEBUG;; esac
"""


@pytest.mark.parametrize("slow", [False, True])
def test_slurm_job_that_fails_at_once_has_failed(batch, tmp_path: pathlib.Path, slow: bool) -> None:
    (tmp_path / "slow").write_text(SLOW)
    process = batch("exit 127", "train", **({"BASH_ENV": str(tmp_path / "slow")} if slow else {}))
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 127, stderr


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("srun, code", [("trap 'exit 7' TERM", 7), ("trap 'sleep 0.5; exit 0' TERM", 0), ("", 143)])
def test_slurm_job_at_its_time_limit_has_the_code_of_its_tasks(batch, tmp_path: pathlib.Path, srun: str, code: int,
                                                               slow: bool) -> None:
    (tmp_path / "slow").write_text(SLOW)
    # bash 5.2 parses a trap wrongly that comes while it expands `<(:)`: the loop has no substitution.
    process = batch(f"{srun}\necho here\nwhile :; do sleep 0.01; done", "train",
                    **({"BASH_ENV": str(tmp_path / "slow")} if slow else {}))
    assert process.stdout.readline() == "here\n"
    process.terminate()
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == code, stderr


def test_slurm_job_hides_nothing_and_says_where_it_records(batch, tmp_path: pathlib.Path) -> None:
    run = "a b'c$(d)"
    process = batch('exec "$@"', "sh", "-c", 'umask; echo "$RANKPROBE_COLLECTOR"', RANKPROBE_RUN=run)
    output, stderr = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "0022\nhere:4711\n"), stderr
    told = subprocess.run(["bash", "-c", 'source rankprobe-7/env; echo "$RANKPROBE_COLLECTOR $RANKPROBE_RUN"'], text=True,
                          cwd=tmp_path, capture_output=True, timeout=60, check=True)
    assert told.stdout == f"here:4711 {run}\n"
    assert (tmp_path / "rankprobe-7/env").stat().st_mode & 0o777 == 0o600


def test_slurm_job_never_records_into_the_collector_of_another(batch, tmp_path: pathlib.Path) -> None:
    """Its own does not come up, for the port is taken; whoever has the port answers. A requeued job has an old port file."""
    (tmp_path / "rankprobe-7").mkdir()
    (tmp_path / "rankprobe-7/port").write_text("7411\n")
    process = batch("echo trained", "train", collector="#!/bin/sh\nexit 1\n", RANKPROBE_PORT="7411")
    output, stderr = process.communicate(timeout=60)
    assert process.returncode == 2 and "no collector" in stderr and output == ""


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
    assert wanted <= names("deploy/packages.txt") | names("packaging/packages.txt") | names("packaging/wheel/packages.txt")
    packages = [line.split()[1] for line in control.splitlines() if line.startswith("Package:")]
    assert packages == ["rankprobe", "librankprobe-dev", "python3-rankprobe"]
    for package in packages:
        assert (harness.ROOT / f"packaging/debian/debian/{package}.install").is_file()
    # The unit starts what the package installs, with the configuration it installs.
    unit = (DEPLOY / "systemd/rankprobed.service").read_text()
    assert "ExecStart=/usr/local/bin/rankprobed --config /etc/rankprobe/rankprobed.json" in unit
    config = json.loads((harness.ROOT / "packaging/debian/debian/rankprobed.json").read_text())
    assert config["listen"].startswith("127.0.0.1:")


def build_wheel(tmp_path: pathlib.Path, *pythons: object) -> subprocess.CompletedProcess:
    """packaging/wheel/build.sh on a machine that has no package, for a user with a sudo that does nothing."""
    for name, does in (("dpkg-query", ":"), ("id", "echo 1000"), ("sudo", 'echo "asked for: $*"; exit 1')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    return subprocess.run([harness.ROOT / "packaging/wheel/build.sh", *pythons], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})


def test_a_wheel_build_tells_at_once_which_packages_are_missing(tmp_path: pathlib.Path):
    done = build_wheel(tmp_path)
    assert done.returncode == 1
    for package in names("deploy/packages.txt") | names("packaging/wheel/packages.txt"):
        assert f" {package}" in done.stdout, package
    assert "asked for: env DEBIAN_FRONTEND=noninteractive apt-get update" in done.stderr
    assert "error: apt-get failed" in done.stderr


def test_a_wheel_build_says_what_it_does_before_it_takes_minutes():
    wheel = harness.ROOT / "packaging/wheel"
    for script, command in (("static_libraries.sh", "\nfetch_sources\n"), ("static_libraries.sh", "cmake --build "), ("static_libraries.sh", "make -C "),
                            ("build.sh", "-m pip wheel "), ("build.sh", 'auditwheel" repair ')):
        before = (wheel / script).read_text().partition(command)[0]
        last = max(before.rfind("\nsay "), before.rfind("\n  say "))
        assert last > 0 and before[last:].count("\n") < 8, (script, command)
    assert ": compiling (many minutes the first time; progress: tail -f $log)" in (wheel / "build.sh").read_text()


def test_a_wheel_is_not_begun_for_a_python_that_does_not_run(tmp_path: pathlib.Path):
    done = build_wheel(tmp_path, tmp_path / "python3.13")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(f"error: {tmp_path}/python3.13: not a Python of 3.10 or later that runs; give the full path")
