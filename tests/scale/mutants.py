#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults that several collectors over one store survive, and that the tests notice when they do not: each mutant is the
smallest change of the source that breaks one rule, and its test must fail with it.

    tests/scale/mutants.py                     all but those that need a Ceph
    tests/scale/mutants.py --ceph              these as well (packages of tests/scale/packages.txt)
    tests/scale/mutants.py --only NAME ..      some
    tests/scale/mutants.py --list              what there is

The changes are made in a copy of the tree (--directory, kept and used again; else a temporary one), one at a time. First
each test is run without a mutant and must pass (--no-baseline: not). A line for each: caught, MISSED, or does not build;
exit code 1 if any was not caught. That the table fits the tree is a default test (tests/docs/test_mutants.py)."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Iterator, Sequence

from mutants_table import FAULTS, MUTANTS, Gtest, Mutant, Test

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Workshop:
    """A copy of the tree that is changed, built and tested."""

    def __init__(self, directory: pathlib.Path, jobs: int):
        self.directory, self.jobs = directory, jobs
        self.build_directory = directory / "build" / "release"
        self.ceph: dict[str, str] = {}
        self.environment = {**{k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "RANKPROBE_"))},
                            "CCACHE_BASEDIR": str(directory), "CCACHE_NOHASHDIR": "1"}

    def copy_tree(self) -> None:
        """As it is now, committed or not; files that are the same keep their times, so that only the rest is built."""
        self.directory.mkdir(parents=True, exist_ok=True)
        listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, check=True,
                                capture_output=True, text=True).stdout
        names = {name for name in listed.split("\0") if name and (ROOT / name).exists()}
        for name in names:
            source, copy = ROOT / name, self.directory / name
            if source.is_symlink() or not source.is_file():
                if not copy.is_symlink():
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.symlink_to(os.readlink(source))
                continue
            if copy.exists() and copy.read_bytes() == source.read_bytes():
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            shutil.copymode(source, copy)
        for folder, folders, files in os.walk(self.directory):
            here = pathlib.Path(folder).relative_to(self.directory)
            folders[:] = [one for one in folders if str(here / one) not in ("build", ".git")]
            for file in files:
                if str(here / file) not in names:
                    (self.directory / here / file).unlink()

    def configure(self, mutants: Sequence[Mutant]) -> bool:
        """Files that are changed are compiled alone, not with seven others as one. Not those of collector/server, which go
        together as they are and no other way (two headers of the system that exclude each other)."""
        alone = self.directory / "build" / "alone.cmake"
        alone.parent.mkdir(exist_ok=True)
        lines = ["function(_alone)"]
        for file in sorted({mutant.file for mutant in mutants if not mutant.file.startswith("collector/server/")}):
            lines.append(f'  set_source_files_properties("{self.directory / file}" DIRECTORY "{(self.directory / file).parent}" '
                         "PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)")
        text = "\n".join([*lines, "endfunction()", "cmake_language(DEFER CALL _alone)", ""])
        if not alone.exists() or alone.read_text() != text:
            alone.write_text(text)
        return self._run(["cmake", "--preset", "release", f"-DCMAKE_PROJECT_INCLUDE={alone}"])

    def build(self, targets: Sequence[str]) -> bool:
        return self._run(["nice", "-n", "5", "cmake", "--build", str(self.build_directory), "-j", str(self.jobs), "--target", *targets])

    def _run(self, command: list[str]) -> bool:
        done = subprocess.run(command, cwd=self.directory, env=self.environment, capture_output=True, text=True)
        if done.returncode != 0:
            print((done.stdout + done.stderr)[-3000:], flush=True)
        return done.returncode == 0

    @contextlib.contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        path = self.directory / mutant.file
        text = path.read_text()
        if text.count(mutant.old) != 1:
            raise SystemExit(f"{mutant.name}: its old text stands {text.count(mutant.old)} times in {mutant.file}")
        path.write_text(text.replace(mutant.old, mutant.new))
        try:
            yield
        finally:
            path.write_text(text)

    def run(self, test: Test) -> tuple[bool | None, str]:
        """Whether it passes, and what it said. None: it did not run as a test does. One that does not end fails."""
        environment = {**self.environment, **(self.ceph if test.needs_ceph else {})}
        if isinstance(test, Gtest):
            command = [str(self.build_directory / "bin" / test.program), f"--gtest_filter={test.name}", "--gtest_brief=1"]
        else:
            environment |= {"RANKPROBE_BUILD_DIR": str(self.build_directory),
                            "PYTHONPATH": f"{self.build_directory / 'python'}:{self.directory / 'tests' / 'lib'}"}
            command = ["/usr/bin/python3", "-m", "pytest", "-q", "-x", "-rs", "-p", "no:cacheprovider", test.node]
        with subprocess.Popen(command, cwd=self.directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", start_new_session=True) as process:
            try:
                said, _ = process.communicate(timeout=test.seconds)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                return False, f"it did not end within {test.seconds} s"
        code = process.returncode
        if isinstance(test, Gtest):
            # A filter that finds nothing passes, too.
            ran = re.search(r"(\d+) tests? from", said)
            return (None if code == 0 and (not ran or ran[1] == "0" or "SKIPPED" in said) else code == 0), said
        # 1: tests have failed. What is skipped has not passed.
        if code == 0 and (" skipped" in said or " passed" not in said):
            return None, said
        return {0: True, 1: False}.get(code), said


@contextlib.contextmanager
def ceph(workshop: Workshop) -> Iterator[None]:
    """A gateway with the bucket of the tests, as in tests/stages/scale.sh."""
    script, directory = ROOT / "tests" / "scale" / "ceph.sh", pathlib.Path(tempfile.mkdtemp())
    try:
        subprocess.run([script, "up", directory / "ceph"], check=True, timeout=300)
        said = subprocess.run(["bash", "-c", 'source "$1" && env -0', "env", directory / "ceph" / "env"], check=True, capture_output=True, text=True).stdout
        workshop.ceph = {k: v for k, _, v in (line.partition("=") for line in said.split("\0")) if k.startswith(("AWS_", "RANKPROBE_SCALE"))}
        workshop.ceph |= {"RANKPROBE_TEST_S3_URL": "s3://conformance/some/prefix", "RANKPROBE_SCALE_BUCKET": "conformance"}
        subprocess.run(["/usr/bin/python3", ROOT / "tests" / "scale" / "make_bucket.py", "conformance"], check=True, timeout=60,
                       env={**os.environ, **workshop.ceph})
        yield
    finally:
        subprocess.run([script, "down", directory / "ceph"], check=False, timeout=120)
        shutil.rmtree(directory, ignore_errors=True)


def baseline(workshop: Workshop, mutants: Sequence[Mutant]) -> bool:
    """Each test once, with nothing changed."""
    good = True
    for test in dict.fromkeys(mutant.test for mutant in mutants):
        began = time.monotonic()
        passed, said = workshop.run(test)
        if passed is not True:
            print(f"without a mutant {test} {'fails' if passed is False else 'does not run'}:\n{said[-2000:]}", flush=True)
            good = False
        else:
            print(f"passes   {test} ({time.monotonic() - began:.0f} s)", flush=True)
    return good


def verdict(workshop: Workshop, mutant: Mutant) -> str:
    with workshop.changed(mutant):
        if not workshop.build(mutant.test.targets):
            return "does not build"
        passed, said = workshop.run(mutant.test)
    if passed is None:
        print(said[-2000:], flush=True)
        return "does not run"
    return "MISSED" if passed else "caught"


def run(workshop: Workshop, mutants: Sequence[Mutant]) -> int:
    counts: dict[str, int] = {}
    for mutant in mutants:
        began = time.monotonic()
        what = verdict(workshop, mutant)
        counts[what] = counts.get(what, 0) + 1
        print(f"{what:<8} {mutant.name} ({time.monotonic() - began:.0f} s): {mutant.rule} [{mutant.test}]", flush=True)
    caught = counts.get("caught", 0)
    rest = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()) if what != "caught")
    print(f"{len(mutants)} mutants: {caught} caught" + (f", {rest}" if rest else ""), flush=True)
    return 0 if caught == len(mutants) and mutants else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=pathlib.Path, help="of the copy; kept, and used again")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[])
    parser.add_argument("--fault", choices=sorted(FAULTS), help="those of one fault")
    parser.add_argument("--ceph", action="store_true", help="also those that need one")
    parser.add_argument("--no-baseline", action="store_true", help="do not run each test without a mutant first")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    unknown = set(arguments.only) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"no mutant named {', '.join(sorted(unknown))}; see --list")
    chosen = [mutant for mutant in MUTANTS if (mutant.name in arguments.only or not arguments.only)
              and arguments.fault in (None, mutant.fault)
              and (arguments.ceph or mutant.name in arguments.only or not mutant.test.needs_ceph)]
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.name}: {FAULTS[mutant.fault]}: {mutant.rule} ({mutant.file}) [{mutant.test}]")
        return 0
    with contextlib.ExitStack() as held:
        directory = arguments.directory or pathlib.Path(held.enter_context(tempfile.TemporaryDirectory(prefix="rankprobe_mutants")))
        workshop = Workshop(directory.resolve(), arguments.jobs)
        workshop.copy_tree()
        targets = sorted({target for mutant in chosen for target in mutant.test.targets})
        if not workshop.configure(MUTANTS) or not workshop.build(targets):
            print("does not build without a mutant", flush=True)
            return 1
        if any(mutant.test.needs_ceph for mutant in chosen):
            held.enter_context(ceph(workshop))
        if not arguments.no_baseline and not baseline(workshop, chosen):
            return 1
        return run(workshop, chosen)


if __name__ == "__main__":
    sys.exit(main())
