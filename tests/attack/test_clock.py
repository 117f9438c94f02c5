# SPDX-License-Identifier: Apache-2.0
"""A wall clock that jumps under a running daemon (clock_shift.c moves it)."""

import pathlib
import subprocess
import time

import pytest

import harness


@pytest.fixture(scope="session")
def shim(tmp_path_factory) -> pathlib.Path:
    library = tmp_path_factory.mktemp("shim") / "clock_shift.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library,
                    pathlib.Path(__file__).with_name("clock_shift.c"), "-ldl"], check=True)
    return library


@pytest.fixture
def start_shifted(start_daemon, shim, tmp_path):
    """start_shifted(*flags) -> (daemon, shift): shift(seconds) sets how far its wall clock is ahead."""
    def start(*flags):
        ahead = tmp_path / "ahead"
        ahead.write_text("0")

        def shift(seconds: int) -> None:
            temporary = ahead.with_suffix(".new")
            temporary.write_text(str(seconds))
            temporary.replace(ahead)

        return start_daemon(*flags, environment={"LD_PRELOAD": str(shim), "CLOCK_SHIFT_FILE": str(ahead)}), shift

    return start


def test_T08_a_clock_set_back_by_an_hour_stops_no_sync_and_stretches_no_timeout(start_shifted):
    daemon, shift = start_shifted()
    rank = harness.RawAgent(daemon, run="clock")
    rank.step(0)
    assert rank.synced()
    for seconds in (-3600, 7200):
        shift(seconds)
        for step in (1, 2):
            rank.step(step + abs(seconds), bytes([step, 2, 3, 4]) * 64)
            assert rank.synced(), f"no SYNCED within {harness.SOON} s of a clock moved by {seconds} s"
        # The rank never answers; the switch ends by its own timeout.
        began = time.monotonic()
        request = harness.control.SetDumpEnableRequest(run="clock", enable=True)
        request.options.timeout_ms = 1000
        assert harness.outcome(daemon.control().SetDumpEnable, request, timeout=60)[0] != "DEADLINE_EXCEEDED"
        assert time.monotonic() - began < 50
    assert daemon.alive


def test_T09_a_moment_ten_days_ahead_deletes_nothing(start_shifted):
    daemon, shift = start_shifted("--retention-hours", 24, "--janitor-seconds", 1)
    rank = harness.RawAgent(daemon, run="kept")
    for step in range(5):
        rank.step(step, bytes([step, 1, 1, 1]) * 64)
    assert rank.synced()
    rank.goodbye()
    time.sleep(1.5)  # a pass with the right time
    shift(10 * 86400)
    harness.wait_for(lambda: "retention_waits" in daemon.log(), what="a word about the clock")
    time.sleep(2)
    shift(0)
    harness.wait_for(lambda: "retention_goes_on" in daemon.log(), what="a word that it is right again")
    time.sleep(1.5)
    status, steps = harness.outcome(daemon.archive().ListSteps, harness.archive.ListStepsRequest(run="kept"))
    assert status == "OK"
    assert len(steps.steps) == 5 and not any(step.deleted for step in steps.steps)
