# SPDX-License-Identifier: Apache-2.0
"""Workflows, issue forms, package metadata and changelog: legal, and about files and versions that there are."""

from __future__ import annotations

import re

import pytest
import yaml

from conftest import ROOT

YAML = sorted([*ROOT.glob(".github/**/*.yml")])


@pytest.mark.parametrize("path", YAML, ids=lambda p: p.name)
def test_it_is_yaml(path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def _steps(name: str) -> list[dict]:
    jobs = yaml.safe_load((ROOT / ".github/workflows" / name).read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_scripts_of_the_workflows_are_there(name: str) -> None:
    said = "\n".join(step.get("run", "") for step in _steps(name))
    scripts = set(re.findall(r"(?:^|[\s/\"])((?:\.ci|packaging|tests|deploy)/[\w./-]+)", said))
    assert scripts and all((ROOT / script).exists() for script in scripts), scripts


def test_continuous_integration_is_the_script_of_developers() -> None:
    assert any(step.get("run") == ".ci/run" for step in _steps("ci.yml"))


def test_wheels_are_built_for_each_python_of_the_metadata() -> None:
    metadata = (ROOT / "agent/python/pyproject.toml").read_text()
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', metadata)
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert jobs["wheel"]["strategy"]["matrix"]["python"] == named == ["3.10", "3.11", "3.12", "3.13"]
    assert f'requires-python = ">={named[0]}"' in metadata and "[project.urls]" in metadata


def test_issue_forms_ask_for_the_doctor() -> None:
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text())
    assert any("rankprobe doctor" in field["attributes"].get("label", "") for field in form["body"])


def test_the_changelog_keeps_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[0] == "[Unreleased]"
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_site_has_every_page() -> None:
    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        return [page for value in (entry.values() if isinstance(entry, dict) else entry) for page in pages(value)]

    named = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(named) == sorted(str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md"))
