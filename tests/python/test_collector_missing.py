# SPDX-License-Identifier: Apache-2.0
"""on_collector_missing: what a job is told when no collector answers, and when (B1)."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import textwrap

import harness
import pytest
import rankprobe

pytest.importorskip("torch")

SCRIPT = textwrap.dedent("""
    import sys, time, torch
    from rankprobe.pytorch import PrecisionDebugger
    debugger = PrecisionDebugger(config_path=sys.argv[1], on_collector_missing=sys.argv[3] or None)
    print("made", file=sys.stderr, flush=True)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2))
    debugger.start(model=net)
    net(torch.ones(1, 2))
    debugger.stop()
    debugger.step()
    time.sleep(float(sys.argv[2]))
    print("trained", file=sys.stderr, flush=True)
""")


def run(dump, seconds: float, collector: str = "127.0.0.1:1", argument: str = "",
        **environment: str) -> subprocess.CompletedProcess:
    # Nothing listens on port 1.
    return subprocess.run([sys.executable, "-c", SCRIPT, dump.config(level="L0"), str(seconds), argument], text=True,
                          capture_output=True, timeout=120,
                          env={**os.environ, "RANKPROBE_COLLECTOR": collector, "RANK": "0", "RANKPROBE_RUN": "missing",
                               **environment})


@pytest.mark.parametrize("policy", ["", "ignore"])
def test_ignore_says_so_at_once_and_training_goes_on(dump, policy) -> None:
    result = run(dump, 5, RANKPROBE_ON_COLLECTOR_MISSING=policy)
    assert result.returncode == 0, result.stderr
    lines = result.stderr.splitlines()
    said = [i for i, line in enumerate(lines) if "what is recorded of rank 0 waits in this process, and is lost if that ends first, training continues" in line]
    assert len(said) == 1 and said[0] < lines.index("trained"), result.stderr
    assert "127.0.0.1:1" in lines[said[0]]
    assert "records go to" not in result.stderr, "nobody has them"


def test_fail_raises_at_construction(dump) -> None:
    result = run(dump, 0, RANKPROBE_ON_COLLECTOR_MISSING="fail", RANKPROBE_WAIT_MS="500")
    assert result.returncode == 1 and "made" not in result.stderr
    assert "no collector at 127.0.0.1:1" in result.stderr.splitlines()[-1]
    assert "on_collector_missing" in result.stderr.splitlines()[-1]


def test_fail_does_not_fail_where_a_collector_is(dump, collector) -> None:
    result = run(dump, 0, collector.address, RANKPROBE_ON_COLLECTOR_MISSING="fail")
    assert result.returncode == 0, result.stderr
    assert "of 1 rank-step stored" in collector.cli("ledger", "--run", "missing").stdout


def test_spool_keeps_it_for_the_next_process(dump, collector, tmp_path) -> None:
    spool = tmp_path / "spool"
    environment = {"RANKPROBE_ON_COLLECTOR_MISSING": "spool", "RANKPROBE_SPOOL": str(spool)}
    result = run(dump, 3, **environment)
    assert result.returncode == 0, result.stderr
    assert f"what is recorded of rank 0 is kept in {spool}" in result.stderr
    assert "records go to" not in result.stderr
    assert any(p.is_file() and p.stat().st_size > 0 for p in spool.rglob("*"))
    result = run(dump, 1, collector.address, **environment)
    assert result.returncode == 0, result.stderr
    assert "of 2 rank-steps stored" in collector.cli("ledger", "--run", "missing").stdout


def test_nothing_is_said_to_be_kept_where_no_spool_can_be(dump, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    spool = tmp_path / "file" / "spool"
    result = run(dump, 5, RANKPROBE_ON_COLLECTOR_MISSING="spool", RANKPROBE_SPOOL=str(spool))
    assert result.returncode == 0, result.stderr
    assert "what is recorded of rank 0 waits in this process, and is lost if that ends first, training continues" in result.stderr
    assert f"is kept in {spool}" not in result.stderr


def test_who_keeps_in_a_place_of_his_own_is_told_where_and_what_delivers_it(dump, collector, tmp_path) -> None:
    spool = tmp_path / "spool"
    result = run(dump, 0, RANKPROBE_STOP="kept", RANKPROBE_SPOOL=str(spool))
    assert result.returncode == 0, result.stderr
    said = result.stderr.splitlines()[-1]
    assert f"0 payloads are kept in {spool}, the next process that records with it sends them, or: " in said, result.stderr
    words = said.partition("or: rankprobe ")[2].split()
    assert words == ["deliver", str(spool)]
    collector.cli(*words)
    assert "of 1 rank-step stored" in collector.cli("ledger", "--run", "missing").stdout


KILLED = textwrap.dedent("""
    import os, signal, sys, torch
    from rankprobe.pytorch import PrecisionDebugger
    torch.set_num_threads(1)
    for _ in range(int(sys.argv[2])):
        child = os.fork()
        if child == 0:
            debugger = PrecisionDebugger(config_path=sys.argv[1])
            for step in range(3):
                debugger.start()
                torch.relu(torch.ones(3))
                debugger.stop()
                if step == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                debugger.step()
        print(child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
""")


def run_killed(dump, rounds: int, name: str, **environment: str) -> subprocess.CompletedProcess:
    """KILLED, as run `name`, with a collector that is not there."""
    inherited = {key: value for key, value in os.environ.items() if key != "RANK"}
    return subprocess.run([sys.executable, "-c", KILLED, dump.config(level="L1"), str(rounds)], text=True, timeout=120, capture_output=True,
                          env={**inherited, **environment, "RANKPROBE_COLLECTOR": "127.0.0.1:1", "RANKPROBE_RUN": name})


def test_a_spool_has_what_stop_returned_for(dump, collector, tmp_path) -> None:
    """SIGKILL in the moment stop() has returned, twenty times."""
    spool, rounds = tmp_path / "spool", 20
    environment = {"RANKPROBE_ON_COLLECTOR_MISSING": "spool", "RANKPROBE_SPOOL": str(spool)}
    killed = run_killed(dump, rounds, "missing", **environment)
    children = [line.split() for line in killed.stdout.splitlines()]
    assert [code for _, code in children] == ["-9"] * rounds, killed.stderr
    result = run(dump, 1, collector.address, **environment)
    assert result.returncode == 0, result.stderr
    stored = {(str(step["pid"]), int(step["step"]))
              for step in map(json.loads, collector.cli("ledger", "--run", "missing", "--json", check=False).stdout.splitlines())
              if int(step["stored_records"]) > 0}
    assert {(child, step) for child, _ in children for step in range(3)} - stored == set()


def test_what_a_killed_process_kept_is_delivered(dump, collector, tmp_path) -> None:
    """Its collector was never there; nobody with that directory comes after it. Twice delivers nothing twice."""
    spool = tmp_path / "spool"
    killed = run_killed(dump, 2, "kept", RANKPROBE_STOP="kept", RANKPROBE_SPOOL=str(spool))
    children = [line.split()[0] for line in killed.stdout.splitlines()]
    assert len(children) == 2 and len(list(spool.glob("*.spool"))) == 2, killed.stderr
    nobody = collector.cli("deliver", str(tmp_path / "nowhere"), check=False)
    assert nobody.returncode == 2 and "no directory" in nobody.stderr
    (spool / "ffffffffffffffff.00000000.spool").write_bytes(b"RPQ3" + b"\xff" * 100)
    (spool / "ffffffffffffffff.lock").touch()
    done = collector.cli("deliver", str(spool))
    assert sorted(line.split("pid ")[1].split()[0] for line in done.stdout.splitlines()) == sorted(children), done.stdout
    stored = [json.loads(line) for line in
              collector.cli("ledger", "--run", "kept", "--json", check=False).stdout.splitlines()]
    assert {(str(step["pid"]), int(step["step"])) for step in stored if int(step["stored_records"]) > 0} == {
        (child, step) for child in children for step in range(3)}
    assert collector.json("deliver", str(spool)) == {"delivered": 0, "left": 0, "passed_over": 0,
                                                          "left_spools": []}
    assert not list(spool.glob("*.spool"))


def test_what_stays_of_a_delivery_is_said(dump, collector, tmp_path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    assert "nothing to deliver" in collector.cli("deliver", str(spool)).stdout
    (spool / "1.lock").touch()
    (spool / "1.00000000.spool").write_bytes(b"RPQ3")
    (spool / "1.00000000.spool").chmod(0o666)
    done = collector.cli("deliver", str(spool), check=False)
    assert done.returncode == 1 and "1 not opened: others made them or can change them" in done.stdout
    stored = collector.cli("deliver", str(spool), "--object-store", str(tmp_path), check=False)
    assert (stored.returncode, stored.stdout, stored.stderr) == (
        2, "", "rankprobe: deliver sends to a collector: name it with --collector, not --object-store\n")


def test_who_stays_of_a_delivery_and_why_is_in_json(start_collector, dump, tmp_path) -> None:
    """A collector that takes nothing of whoever has that token."""
    spool = tmp_path / "spool"
    killed = run_killed(dump, 1, "kept", RANKPROBE_STOP="kept", RANKPROBE_SPOOL=str(spool))
    child = killed.stdout.split()[0]
    for name, text in (("tokens", "viewer reader aaaaaaaaaaaaaaaaaaaaaaaa\n"), ("token", "aaaaaaaaaaaaaaaaaaaaaaaa")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    closed = start_collector("--token-file", str(tmp_path / "tokens"))
    words = ["deliver", str(spool), "--token-file", str(tmp_path / "token")]
    done = closed.cli(*words, "--json", check=False)
    answer = json.loads(done.stdout)
    assert done.returncode == 1 and (answer["delivered"], answer["left"]) == (0, 1), done
    left, = answer["left_spools"]
    assert (str(left["identity"]["pid"]), left["identity"]["run"]) == (child, "kept")
    assert f"left: run kept pid {child}" in (text := closed.cli(*words, check=False).stdout) and left["reason"] in text
    assert len(list(spool.glob("*.spool"))) == 1


def test_what_there_was_no_room_for_is_said_when_the_collector_is_back(dump, collector, tmp_path) -> None:
    """A queue of 1 MiB, and tensors of 512 KiB, each with other elements."""
    script = textwrap.dedent("""
        import os, sys, torch
        from rankprobe.pytorch import PrecisionDebugger
        debugger, step = PrecisionDebugger(config_path=sys.argv[1]), 0
        while not os.path.exists(sys.argv[2]):
            debugger.start()
            torch.neg(torch.full((1 << 17,), float(step)))
            debugger.stop()
            debugger.step()
            step += 1
            print(step, flush=True)
    """)
    log = tmp_path / "stderr"
    with log.open("w") as stderr:
        ranks = subprocess.Popen([sys.executable, "-c", script, dump.config(task="tensor", level="L1"), str(tmp_path / "end")], text=True,
                                 stdout=subprocess.PIPE, stderr=stderr,
                                 env={**os.environ, "RANK": "0", "RANKPROBE_RUN": "missing", "RANKPROBE_COLLECTOR": collector.address,
                                      "RANKPROBE_QUEUE_MB": "1"})
        try:
            assert ranks.stdout and ranks.stdout.readline()
            collector.kill()
            for _ in range(8):  # some wait a while for room
                assert ranks.stdout.readline()
            harness.wait_for(lambda: "is unreachable" in log.read_text(), 60, "the line")
            for _ in range(8):
                assert ranks.stdout.readline()
            collector.start()
            harness.wait_for(lambda: "is back" in log.read_text(), 60, "the other line")
        finally:
            (tmp_path / "end").touch()
            ranks.stdout.close()
            ranks.wait(timeout=120)
    (said,) = [line for line in log.read_text().splitlines() if "is back" in line]
    lost = int(said.partition("waiting records are sent; for ")[2].split()[0])
    assert lost >= 8 and "see rankprobe ledger" in said


@pytest.mark.parametrize("waits", [{}, {"RANKPROBE_WAIT_MS": "60000"}], ids=["by default", "as it was told"])
def test_one_that_hangs_makes_one_step_wait_for_a_moment(dump, collector, monkeypatch, waits: dict) -> None:
    monkeypatch.delenv("RANKPROBE_WAIT_MS")
    script = textwrap.dedent("""
        import sys, time, torch
        from rankprobe.pytorch import PrecisionDebugger
        debugger = PrecisionDebugger(config_path=sys.argv[1])
        for line in sys.stdin:
            begun = time.monotonic()
            debugger.start()
            torch.relu(torch.ones(2))
            debugger.stop()
            debugger.step()
            print(time.monotonic() - begun, flush=True)
        """)
    job = subprocess.Popen([sys.executable, "-c", script, dump.config(level="L1")], text=True, stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           env={**os.environ, "RANKPROBE_COLLECTOR": collector.address, "RANK": "0", "RANKPROBE_RUN": "hung", **waits})
    steps = 0

    def step() -> float:
        nonlocal steps
        steps += 1
        job.stdin.write("\n")
        job.stdin.flush()
        return float(job.stdout.readline())

    def stopped() -> bool:
        tasks = pathlib.Path(f"/proc/{collector.process.pid}/task").iterdir()
        return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)

    # Its first steps may be over before it is connected, on a busy machine.
    harness.wait_for(lambda: step() and "rank-steps stored" in collector.cli("ledger", "--run", "hung", check=False).stdout, 60, "a stored step")
    collector.process.send_signal(signal.SIGSTOP)
    try:
        harness.wait_for(stopped, 30, "the collector to stand still")
        first, *others = [step() for _ in range(5)]
    finally:
        collector.process.send_signal(signal.SIGCONT)
    said = job.communicate(timeout=120)[1]
    assert job.returncode == 0, said
    # Until the connection counts as broken, not for RANKPROBE_WAIT_MS.
    assert first >= 0.5 if waits else max(first, *others) < 0.5
    assert "accepts nothing" not in said, said
    stored = collector.cli("ledger", "--run", "hung").stdout
    whole = re.search(r"of (\d+) rank-steps stored, nothing lost", stored)
    assert whole and int(whole.group(1)) >= 6, stored


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_private_collector_that_hangs_makes_one_step_wait_for_a_moment(dump, task: str) -> None:
    """Tensors are kept in no file: their step waited ten seconds for one. All is there in the end."""
    script = textwrap.dedent(f"""
        import os, pathlib, signal, sys, time, torch
        sys.path.insert(0, {str(pathlib.Path(__file__).resolve().parents[1] / "crash")!r})
        import private_rounds
        from rankprobe.pytorch import PrecisionDebugger
        debugger = PrecisionDebugger(config_path=sys.argv[1])
        def step():
            begun = time.monotonic()
            debugger.start()
            torch.relu(torch.ones(1 << 10))
            debugger.stop()
            debugger.step()
            return time.monotonic() - begun
        step()
        debugger.wait_exported()
        collector = private_rounds.guard(pathlib.Path(sys.argv[2]), "collector")
        os.kill(collector, signal.SIGSTOP)
        longest = max(step() for _ in range(20))
        os.kill(collector, signal.SIGCONT)
        print(longest)
        """)
    environment = {key: value for key, value in os.environ.items() if key not in ("RANKPROBE_WAIT_MS", "RANKPROBE_COLLECTOR")}
    done = subprocess.run([sys.executable, "-c", script, dump.config(level="L1", task=task), str(dump.path)], capture_output=True, text=True,
                          env={**environment, "RANK": "0"}, timeout=120)
    assert done.returncode == 0 and float(done.stdout.splitlines()[-1]) < 1, done
    harness.wait_for(lambda: not (dump.path / ".rankprobe").exists(), 90, "the end of the collector")
    manifest = json.loads((dump.path / "manifest.json").read_text())
    assert len(list(dump.path.glob("step*/rank0/dump.json"))) == 21 and not manifest["gaps"] and not manifest["incomplete"]


@pytest.mark.parametrize("policy, word", [("spool", "RANKPROBE_SPOOL"), ("explode", "ignore, spool, fail")])
def test_bad_settings_are_named(dump, policy, word) -> None:
    result = run(dump, 0, RANKPROBE_ON_COLLECTOR_MISSING=policy)
    assert result.returncode == 1 and word in result.stderr.splitlines()[-1]


def test_the_argument_beats_the_environment(dump) -> None:
    result = run(dump, 0, argument="fail", RANKPROBE_ON_COLLECTOR_MISSING="ignore", RANKPROBE_WAIT_MS="500")
    assert result.returncode == 1 and "made" not in result.stderr
    assert "on_collector_missing is fail" in result.stderr.splitlines()[-1]
    result = run(dump, 0, argument="ignore", RANKPROBE_ON_COLLECTOR_MISSING="fail")
    assert result.returncode == 0 and "trained" in result.stderr, result.stderr


def test_a_wrong_argument_is_named(dump) -> None:
    result = run(dump, 0, argument="explode")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].endswith(
        "InvalidParameterError: on_collector_missing must be fail, spool or ignore, or None, not 'explode'")
    result = run(dump, 0, argument="spool")
    assert result.returncode == 1 and "RANKPROBE_SPOOL" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("text", ["soon", "0", "-1", "1.5"])
def test_a_wait_that_is_no_number_is_named(dump, text) -> None:
    result = run(dump, 0, RANKPROBE_WAIT_MS=text)
    assert result.returncode == 1 and f"RANKPROBE_WAIT_MS={text} is not an integer >= 1" in result.stderr.splitlines()[-1]


def test_the_low_level_session_has_it(monkeypatch) -> None:
    import rankprobe

    monkeypatch.setenv("RANKPROBE_WAIT_MS", "500")
    with pytest.raises(ValueError, match="on_collector_missing=explode is not one of ignore, spool, fail"):
        rankprobe.Session("127.0.0.1:1", run="missing", on_collector_missing="explode")
    with pytest.raises(TimeoutError, match="no collector at 127.0.0.1:1.*on_collector_missing is fail"):
        rankprobe.Session("127.0.0.1:1", run="missing", on_collector_missing="fail")


ATTACHED = """
import torch
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(1, 2)).sum().backward()
optimizer.step()
print("trained")
"""


@pytest.mark.parametrize("policy", ["ignore", "fail"])
def test_a_session_that_cannot_be_made_leaves_the_private_collector(dump, monkeypatch, capfd, policy) -> None:
    """Its lock and its processes do not stay as long as this process does; the training ends if that was asked for."""
    def raises(*_: object, **__: object) -> None:
        raise RuntimeError("cannot be made")

    monkeypatch.delenv("RANKPROBE_COLLECTOR", raising=False)
    monkeypatch.setenv("RANKPROBE_ON_COLLECTOR_MISSING", policy)
    monkeypatch.setattr("rankprobe._frontend.session._native.Session", raises)
    if policy == "fail":
        with pytest.raises(TimeoutError, match="cannot be made") as caught:
            dump.debugger()
        assert type(caught.value).__name__ == "CollectorMissingError"
    else:
        dump.debugger()
        assert "cannot be made; nothing is recorded, and the training continues" in capfd.readouterr().err
    harness.wait_for(lambda: not (dump.path / ".rankprobe").exists(), 30, "the end of the collector")


def test_fail_is_about_the_collector_alone(tmp_path, collector) -> None:
    """A fault of the configuration is told before the job, whatever the policy."""
    config = tmp_path / "config.json"
    config.write_text('{"task": "statistics", "level": "L7", "dump_path": "d", "rank": [], "step": []}')
    result = subprocess.run([sys.executable, "-m", "rankprobe.run", "--collector", collector.address, "--run", "missing",
                             "--config", config, "--on-collector-missing", "fail", "--", sys.executable, "-c", ATTACHED],
                            text=True, capture_output=True, timeout=120, cwd=tmp_path)
    assert result.returncode == 2 and "trained" not in result.stdout, result.stderr
    assert "config.json:1:24" in result.stderr and "L7" in result.stderr


@pytest.mark.parametrize("policy, code", [("fail", 1), ("ignore", 0), ("explode", 2)])
def test_rankprobe_run(tmp_path, policy, code) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RANKPROBE_")} | {"RANKPROBE_WAIT_MS": "500"}
    result = subprocess.run([sys.executable, "-m", "rankprobe.run", "--collector", "127.0.0.1:1", "--run", "missing",
                             "--on-collector-missing", policy, "--", sys.executable, "-c", ATTACHED], text=True,
                            capture_output=True, timeout=120, env=environment, cwd=tmp_path)
    assert result.returncode == code, result.stderr
    assert ("trained" in result.stdout) == (code == 0)
    if policy == "fail":
        assert "on_collector_missing is fail" in result.stderr.splitlines()[-1]
    if policy == "explode":
        assert "--on-collector-missing" in result.stderr.splitlines()[-1]


def test_a_missing_program_of_ours_is_named_at_once(dump, tmp_path) -> None:
    """For a private collector: it was tried again for a minute before."""
    site = tmp_path / "lib" / "site"
    shutil.copytree(pathlib.Path(rankprobe.__file__).parent, site / "rankprobe",
                    ignore=shutil.ignore_patterns("__pycache__", "bin"))
    # The time is that of ours alone: on a busy machine importing PyTorch and taking it down again takes a minute and more.
    script = SCRIPT.replace("debugger = ", "begun = time.monotonic()\nimport atexit\n"
                            "atexit.register(lambda: print('after', time.monotonic() - begun, flush=True))\ndebugger = ")
    environment = {**os.environ, "RANKPROBE_COLLECTOR": "", "RANK": "0", "RANKPROBE_RUN": "missing", "PYTHONPATH": str(site),
                   "PATH": "/nowhere", "RANKPROBE_BIN_DIR": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", script, dump.config(level="L0"), "0", ""], text=True, capture_output=True,
                            timeout=600, env=environment)
    assert result.returncode == 0 and "trained" in result.stderr, result.stdout + result.stderr
    assert "no program rankprobed" in result.stderr and "nothing is recorded" in result.stderr, result.stderr
    assert not (dump.path / ".rankprobe").exists()
