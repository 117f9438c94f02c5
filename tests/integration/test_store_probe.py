# SPDX-License-Identifier: Apache-2.0
"""Probes of a store at the start: one that does not keep create-if-absent is refused before a rank can come, by whoever
would decide something in it. The racers are those of collector/object_store/store_probe."""

from __future__ import annotations

import subprocess

import pytest

import harness


@pytest.mark.parametrize("role", ["leaf", "root", "janitor"])
def test_a_store_without_create_if_absent_is_refused(tmp_path, stub, role):
    url = f"s3://bucket/some/prefix?endpoint={stub.url}"
    stub.keeps_condition = False
    refused = subprocess.run([harness.BIN / "rankprobed", "--listen", "127.0.0.1:0", "--data-dir", tmp_path / "data", "--role", role,
                              "--object-store", url], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 6 and "is not fit for an archive" in refused.stderr and "If-None-Match" in refused.stderr, refused
    assert refused.stderr.count("\n") == 1 and "listening" not in refused.stdout, refused
    # Nothing of the race is left.
    assert stub.keys() == []
    stub.keeps_condition = True
    (tmp_path / "taken").mkdir()
    taken = harness.Collector(tmp_path / "taken", "--role", role, "--object-store", url).start()
    assert taken.stop() == 0, taken.log_text()[-2000:]
    assert stub.keys("probe") == []
