# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a collector on an ephemeral port, and jobs that are always ended."""

import pathlib

import pytest

import harness
from s3_stub import S3Stub


@pytest.fixture
def collector(tmp_path: pathlib.Path):
    directory = tmp_path / "collector"
    directory.mkdir()
    instance = harness.Collector(directory).start()
    yield instance
    if instance.process.poll() is None:
        assert instance.stop() == 0, instance.log_text()[-2000:]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch):
    """An S3 of the tests' own, with credentials for it."""
    for name, value in (("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")):
        monkeypatch.setenv(name, value)
    made = S3Stub()
    yield made
    made.end()


@pytest.fixture
def start_job(tmp_path: pathlib.Path):
    jobs = []

    def start(name: str, collector: str, cfg: dict, **kwargs) -> harness.Job:
        directory = tmp_path / name
        directory.mkdir()
        jobs.append(harness.Job(directory, collector, name, cfg, **kwargs))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()
