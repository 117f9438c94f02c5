# SPDX-License-Identifier: Apache-2.0
"""What a test that passed wrote is removed at once: some write gigabytes, and pytest keeps all of them of three runs."""

from __future__ import annotations

import shutil

import pytest

_failed = pytest.StashKey[bool]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.failed:
        item.stash[_failed] = True


@pytest.fixture
def tmp_path(tmp_path, request):
    yield tmp_path
    if not request.node.stash.get(_failed, False):
        shutil.rmtree(tmp_path, ignore_errors=True)
