# SPDX-License-Identifier: Apache-2.0
"""Dockerfile, docker-compose.yml and job.yaml against the tree, the build and the programs,
as far as it shows without an image. With one: the stage containers."""

from __future__ import annotations

import fnmatch
import functools
import pathlib
import re
import shlex
import subprocess

import pytest

import harness

yaml = pytest.importorskip("yaml")
ROOT = harness.ROOT
PACKAGE = "/usr/local/lib/python3.11/dist-packages/rankprobe"


def instructions() -> list[tuple[str, list[str]]]:
    """Of the Dockerfile, in order: the word in capitals, and what follows it."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], shlex.split(line)[1:]) for line in text.splitlines() if line.strip()]


def copies() -> list[tuple[str, list[str], str]]:
    """Every COPY: the stage it takes from ("" is the tree), the sources, the destination."""
    out = []
    for word, rest in instructions():
        if word == "COPY":
            stage = rest.pop(0)[7:] if rest[0].startswith("--from=") else ""
            out.append((stage, rest[:-1], rest[-1]))
    return out


def in_image(path: str) -> pathlib.Path:
    """What of the tree lies at `path` of the image."""
    for stage, sources, destination in copies():
        if stage == "" and destination.startswith("/") and path.startswith(destination.rstrip("/") + "/"):
            return ROOT / sources[0] / path[len(destination.rstrip("/")) + 1:]
    raise AssertionError(f"no COPY puts anything at {path}")


@functools.lru_cache(maxsize=None)
def flags(program: str) -> set[str]:
    """Of a program in the image, by its name, or of a script there, by its path."""
    if program.endswith(".py"):
        return set(re.findall(r'add_argument\("(--[\w-]+)"', in_image(program).read_text()))
    text = subprocess.run([harness.BIN / program, "--help"], capture_output=True, text=True, timeout=120, check=True).stdout
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))


def check_flags(words: list[str]) -> None:
    """The flags of a command line in the image exist."""
    program = words[1] if words[0] == "python3" else words[0]
    for word in words[1:]:
        if word.startswith("--"):
            assert word.split("=")[0] in flags(program), (program, word)
        if (value := word.partition("=")[2]).startswith("/usr/local/share/"):
            assert in_image(value).is_file(), value


def test_what_the_image_takes_from_the_tree_is_there():
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {"build", ".git"} <= set(ignored)
    taken = [source for stage, sources, _ in copies() if stage == "" for source in sources]
    assert len(taken) >= 4
    for source in taken:
        assert (ROOT / source).exists(), source
        assert not any(fnmatch.fnmatch(source, pattern) for pattern in ignored), source


def test_what_the_image_takes_from_the_build_is_built():
    (script,) = [rest[-1] for word, rest in instructions() if word == "RUN" and "common.sh" in rest[-1]]
    targets = script.split("; build ")[1] if "; build " in script else re.split(r"\bbuild ", script)[1]
    targets = set(targets.split())
    known = subprocess.run(["ninja", "-C", harness.BUILD, "-t", "targets", "all"], capture_output=True, text=True,
                           check=True).stdout
    for target in targets:
        assert re.search(rf"^(\S+/)?{target}: ", known, re.MULTILINE), target
    taken = [s for stage, sources, _ in copies() if stage == "build" for s in sources]
    programs = {pathlib.Path(s).name for s in taken if "/bin/" in s}
    assert all(s.startswith("/src/build/release/") for s in taken) and programs <= targets
    # Both extensions of the package, or half of the commands would be missing in it.
    assert {"rankprobe_native", "rankprobe_analysis_native"} <= targets and PACKAGE in [d for _, _, d in copies()]


def packages_with(names: set[str]) -> set[str]:
    """These Debian packages and all that they bring."""
    installed = subprocess.run(["dpkg-query", "-W", "-f", "${Package}\t${Depends}, ${Pre-Depends}\t${Provides}\n"],
                               capture_output=True, text=True, check=True).stdout
    needs, provides = {}, {}
    for line in installed.splitlines():
        package, depends, provided = line.split("\t")
        words = lambda field: {w.split()[0].split(":")[0] for w in re.split(r"[,|]", field) if w.strip()}
        needs.setdefault(package, set()).update(words(depends))
        for name in words(provided):
            provides.setdefault(name, set()).add(package)
    found, todo = set(), set(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo |= needs.get(name, set()) | provides.get(name, set())
    return found


def test_the_runtime_has_the_libraries():
    (install,) = [rest for word, rest in instructions() if word == "RUN" and "--no-install-recommends" in rest]
    words = install[install.index("--no-install-recommends") + 1:]
    there = packages_with(set(words[:words.index("&&")])) | {"libc6", "libgcc-s1", "libstdc++6"}
    built = [*(harness.BIN / name for name in ("rankprobed", "rankprobe", "train_transformer")),
             *(harness.BUILD / "python/rankprobe").glob("*.so")]
    assert len(built) == 5
    tables = subprocess.run(["readelf", "-d", *built], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", tables))
    assert len(needed) > 20
    lists = [path for path in pathlib.Path("/var/lib/dpkg/info").glob("*.list") if path.stem.split(":")[0] in there]
    provided = {line.rpartition("/")[2] for path in lists for line in path.read_text().splitlines()}
    missing = needed - provided
    assert not missing


def test_commands_in_the_image_have_their_flags():
    (command,) = [rest for word, rest in instructions() if word == "CMD"]
    check_flags([word.strip("[],") for word in command])
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    trainers = [service["command"] for service in services.values() if "command" in service]
    job = job_pod()["containers"][0]
    assert len(trainers) == 2
    for words in [*trainers, [*job["command"], *job["args"]]]:
        assert len(words) > 5
        check_flags(words)


def test_compose_mounts_what_it_declares():
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    mounted = {volume.split(":")[0] for service in compose["services"].values() for volume in service["volumes"]}
    assert mounted == set(compose["volumes"])
    (volume,) = [rest[0] for word, rest in instructions() if word == "VOLUME"]
    assert f"archive:{volume}" in compose["services"]["collector"]["volumes"]
    for name, service in compose["services"].items():
        for word in service.get("command", []):
            if word.startswith("--store="):
                assert any(word[8:].startswith(v.split(":")[1] + "/") for v in service["volumes"]), name


def job_documents() -> dict[str, dict]:
    return {d["kind"]: d for d in yaml.safe_load_all((ROOT / "deploy/kubernetes/job.yaml").read_text())}


def job_pod() -> dict:
    return job_documents()["Job"]["spec"]["template"]["spec"]


def test_the_job_brings_its_volume_and_knows_the_image_user():
    claim = job_documents()["PersistentVolumeClaim"]
    # Two pods, maybe on two nodes, meet in it.
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    claims = [v["persistentVolumeClaim"]["claimName"] for v in job_pod()["volumes"] if "persistentVolumeClaim" in v]
    assert claims == [claim["metadata"]["name"]]
    container = job_pod()["containers"][0]
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert set(mounts) == {v["name"] for v in job_pod()["volumes"]}
    (store,) = [a[8:] for a in container["args"] if a.startswith("--store=")]
    assert store.startswith(mounts["rendezvous"] + "/")
    given = {e["name"] for e in container["env"]} | {"JOB_COMPLETION_INDEX"}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))) <= given
    user = int(re.search(r"--uid (\d+)", (ROOT / "Dockerfile").read_text())[1])
    collector = next(d for d in yaml.safe_load_all((ROOT / "deploy/kubernetes/collector.yaml").read_text())
                     if d["kind"] == "Deployment")["spec"]["template"]["spec"]
    for pod in (collector, job_pod()):
        assert {pod["securityContext"][f] for f in ("runAsUser", "runAsGroup", "fsGroup")} == {user}
