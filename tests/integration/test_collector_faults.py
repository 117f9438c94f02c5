# SPDX-License-Identifier: Apache-2.0
"""Bad surroundings of the collector: each a clear error and an exit code."""

import json
import os
import shutil
import socket
import subprocess
import threading

import pytest

import harness


def run_collector(*flags, timeout=30):
    return subprocess.run([harness.BIN / "rankprobed", "--listen", "127.0.0.1:0", *map(str, flags)],
                          capture_output=True, text=True, timeout=timeout)


def test_second_collector_on_the_same_data_directory(collector):
    result = run_collector("--data-dir", collector.data_dir)
    assert result.returncode == 3
    assert str(collector.process.pid) in result.stderr and str(collector.data_dir) in result.stderr


def test_a_signal_that_comes_twice_is_one(tmp_path):
    """As timeout(1) sends it, to its child and to the child's group."""
    for _ in range(5):
        collector = harness.Collector(tmp_path).start()
        collector.process.terminate()
        collector.process.terminate()
        harness.wait_for(lambda: "event=draining" in collector.log_text() or collector.process.poll() is not None, 30, "its end")
        collector.process.terminate()
        assert collector.process.wait(60) == 0, collector.log_text()[-2000:]


def test_every_fault_of_a_config_is_named(tmp_path):
    cfg = tmp_path / "rankprobed.json"
    cfg.write_text(json.dumps({"listen": "nowhere", "segment-bytes": -5, "no-such-key": 1}))
    result = run_collector("--data-dir", tmp_path / "d", "--config", cfg)
    assert result.returncode == 2
    for word in ("segment-bytes", "no-such-key"):
        assert word in result.stderr, result.stderr


def test_corrupt_index(tmp_path):
    directory = tmp_path / "c"
    directory.mkdir()
    collector = harness.Collector(directory).start()
    assert collector.stop() == 0
    current = next(collector.data_dir.rglob("CURRENT"))
    current.write_text("MANIFEST-999999\n")
    result = run_collector("--data-dir", collector.data_dir)
    assert result.returncode == 4
    assert str(collector.data_dir) in result.stderr


def test_data_directory_that_is_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    result = run_collector("--data-dir", path)
    assert result.returncode == 4 and str(path) in result.stderr


def test_listening_beyond_loopback_needs_insecure(tmp_path):
    result = subprocess.run([harness.BIN / "rankprobed", "--listen", "0.0.0.0:0", "--data-dir", tmp_path / "d"],
                            capture_output=True, text=True, timeout=30)
    assert result.returncode == 2 and "--insecure" in result.stderr


@pytest.mark.parametrize("verb", [("delete", "--run", "r", "--steps"), ("export", "--run", "r", "-o", "d", "--ranks"),
                                  ("ledger", "--run", "r", "--steps"), ("enable", "--ranks"), ("flight", "--ranks")])
def test_a_list_that_is_there_and_empty_is_a_slip(tmp_path, verb):
    """`--steps "$STEPS"` where nobody has set it: not all of them."""
    done = subprocess.run([harness.BIN / "rankprobe", "--collector", "127.0.0.1:1", *verb, ""], cwd=tmp_path,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "an empty list" in done.stderr, done.stderr


def test_cli_against_nothing_and_against_another_protocol(tmp_path):
    env = {**os.environ, "RANKPROBE_COLLECTOR": "127.0.0.1:1"}
    result = subprocess.run([harness.BIN / "rankprobe", "--timeout", "3", "runs"], capture_output=True, text=True,
                            env=env, timeout=30)
    assert result.returncode == 3 and "127.0.0.1:1" in result.stderr and result.stderr.count("\n") == 1

    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer():
            for _ in range(8):
                try:
                    connection, _address = server.accept()
                except OSError:
                    return
                connection.sendall(b"HTTP/1.0 400 no\r\n\r\n")
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        env["RANKPROBE_COLLECTOR"] = f"127.0.0.1:{server.getsockname()[1]}"
        result = subprocess.run([harness.BIN / "rankprobe", "--timeout", "3", "runs"], capture_output=True,
                                text=True, env=env, timeout=30)
        assert result.returncode == 3 and result.stderr.count("\n") == 1


def test_what_a_process_takes_with_it_is_said(tmp_path, start_job, monkeypatch):
    """A disk that stays full until the job has ended: nothing was kept, and everybody says so."""
    if shutil.disk_usage(tmp_path).free >= 1 << 40:
        pytest.skip("no flag says that this disk is full")
    monkeypatch.setenv("RANKPROBE_WAIT_MS", "1000")
    directory = tmp_path / "c"
    directory.mkdir()
    collector = harness.Collector(directory, "--min-free-bytes", str(1 << 40)).start()
    try:
        job = start_job("full", collector.address, {**harness.config("statistics", "mix"), "dump_enable": True}, stepwise=True)
        job.step(3)
        assert job.finish(seconds=120) == [0, 0]
        for rank in job.ranks:
            log = rank.log.read_text()
            assert "are lost, the process ends before the collector has them" in log, log
        said = [line for line in collector.log_text().splitlines() if "event=no_room" in line]
        assert len(said) == 1 and "rankprobe delete" in said[0] and "event=room_again" not in collector.log_text(), said
        ledger = collector.cli("ledger", "--run", "full", check=False)
        assert "lost PROCESS_EXIT: " in ledger.stdout and "nothing lost" not in ledger.stdout, ledger
        assert collector.stop() == 0
    finally:
        if collector.process and collector.process.poll() is None:
            collector.kill()


def test_a_collector_that_goes_while_ranks_record_is_told_of(tmp_path, start_job):
    """Once when it goes, once when it is back; when it is gone for good the ledger knows at the next start who had not
    come back, and says so until he does."""
    directory = tmp_path / "c"
    directory.mkdir()
    collector = harness.Collector(directory).start()
    try:
        job = start_job("gone", collector.address, {**harness.config("statistics", "mix"), "dump_enable": True})
        idle = start_job("idle", collector.address, harness.config("statistics", "mix"), world_size=1)
        idle.wait_steps(3)
        job.wait_steps(3)
        job.wait_known(collector)
        idle.wait_known(collector)

        def said(what: str, times: int) -> None:
            for rank in job.ranks:
                harness.wait_for(lambda: rank.log.read_text().count(what) == times, 60, f"{what!r} of rank {rank.rank}")

        collector.kill()
        said(f"the collector at {collector.address} is unreachable", 1)
        job.wait_steps(20)  # training goes on, and a line of each step it is not
        collector.start()
        said("is back; waiting records are sent", 1)
        job.wait_steps(3)
        ledger = collector.cli("ledger", "--run", "gone", check=False)
        assert "NOT_HEARD_OF" not in ledger.stdout, ledger.stdout
        collector.kill()
        said(f"the collector at {collector.address} is unreachable", 2)
        said("is back", 1)
        assert idle.finish() == [0] and job.finish(seconds=120) == [0, 0]
        said("are lost, the process ends before the collector has them", 1)
        assert "is unreachable" not in idle.ranks[0].log.read_text()
        for _ in range(2):
            collector.start()
            for words in (("ledger",), ("ledger", "--counts"), ("status",)):
                done = collector.cli(*words, "--run", "gone", check=False)
                assert "lost NOT_HEARD_OF: 0 records, 0 payloads, 2 of unknown content" in done.stdout, done
                assert "nothing lost" not in done.stdout, done
            assert "NOT_HEARD_OF" not in collector.cli("ledger", "--run", "idle", check=False).stdout
            collector.kill()
        collector.start()
        assert collector.cli("export", "--run", "gone", "-o", tmp_path / "dump", check=False).returncode == 1
        gaps = json.loads((tmp_path / "dump" / "manifest.json").read_text())["gaps"]
        assert {gap["rank"] for gap in gaps if gap["reason"] == "NOT_HEARD_OF"} == {"rank0", "rank1"}, gaps
        assert collector.stop() == 0
    finally:
        if collector.process and collector.process.poll() is None:
            collector.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_disk_fills_up_and_is_freed(tmp_path, start_job, monkeypatch):
    monkeypatch.setenv("RANKPROBE_WAIT_MS", "1000")
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", mount]).returncode != 0:
        pytest.skip("this machine does not allow a tmpfs mount")
    directory = tmp_path / "c"
    directory.mkdir()
    ballast = mount / "ballast"
    ballast.write_bytes(b"\0" * (24 << 20))
    collector = harness.Collector(directory, "--min-free-bytes", str(8 << 20), data_dir=mount / "data")
    try:
        collector.start()
        job = start_job("full", collector.address, harness.config("tensor", "mix"), stepwise=True)
        job.step(2)
        job.wait_known(collector)
        on = collector.json("enable", "--run", "full", "--for-steps", "2")
        job.step_until(on["effective_at_step"] + 6)  # training goes on
        ballast.unlink()
        job.step(3)
        assert job.finish(seconds=120) == [0, 0]
        # Still the same process, still answering, still able to export.
        assert collector.process.poll() is None
        collector.cli("export", "--run", "full", "-o", tmp_path / "dump", check=False)
        for step in (tmp_path / "dump").glob("step*/rank*"):
            harness.load_dump(step)
        if "event=no_room" in collector.log_text():
            collector.cli("delete", "--run", "full")
            harness.wait_for(lambda: "event=room_again" in collector.log_text(), 30, "the line of room again")
        assert collector.stop() == 0
    finally:
        if collector.process and collector.process.poll() is None:
            collector.kill()
        subprocess.run(["umount", "-l", mount], check=False)
