# SPDX-License-Identifier: Apache-2.0
"""A live job of which one frame is refused at each try: the ledger, the CLI, the export's manifest and one line of stderr
say so, and every other step is whole.

A proxy between agent and collector spoils the frame on its way. It is sent up to 5 times.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
import textwrap
import threading
from typing import Any, Callable, Iterator

import pytest

pytest.importorskip("torch")
grpc = pytest.importorskip("grpc")

SCRIPT = textwrap.dedent("""
    import sys, torch
    from rankprobe.pytorch import PrecisionDebugger
    debugger = PrecisionDebugger(config_path=sys.argv[1])
    net = torch.nn.Linear(64, 64)
    if sys.argv[2:] == ["wait"]:
        sys.stdin.read()
    for step in range(4):
        debugger.start(model=net)
        out = net(torch.full((1, 64), float(step)))
        if step == 2 and sys.argv[2:] == ["poison"]:
            out = torch.sinh(torch.full((1, 64), 1234.5))
        debugger.stop()
        debugger.step()
    print("trained", file=sys.stderr, flush=True)
""")
# Of the call and of the tensor that are to be spoilt.
ENTRY = b"Torch.sinh.0.forward"
TRIES = 5
DAMAGED = f"it was damaged in transit {TRIES} times"
BYTES = bytes.fromhex("00509a44") * 64  # 1234.5, 64 times


def spoil_records(frame: bytes) -> bytes:
    return frame.replace(ENTRY, b"Torch.\xffinh.0.forward")


def spoil_payload(frame: bytes) -> bytes:
    return frame.replace(BYTES, BYTES[:-1] + b"\x45")


class Proxy(grpc.GenericRpcHandler):
    """Hands on what rank and collector say; `spoil` changes one frame, each time that it is sent. With `deaf` the rank does
    not hear once why its connection ended: it breaks for another reason."""

    def __init__(self, collector: str, spoil: Callable[[bytes], bytes], deaf: bool = False) -> None:
        self._channel = grpc.insecure_channel(collector)
        self._spoil, self._deaf = spoil, deaf
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(16), handlers=[self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self.spoilt = 0
        self.meddled = threading.Event()
        self.broken = threading.Event()
        self._server.start()

    def close(self) -> None:
        self._server.stop(None).wait()
        self._channel.close()

    def service(self, details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(
            lambda requests, context: self._call(details.method, requests, context))

    def _call(self, method: str, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        upload = method.endswith("/Upload")
        call = self._channel.stream_stream(method)(self._frames(requests) if upload else requests)
        context.add_callback(call.cancel)
        try:
            yield from call
        except grpc.RpcError as error:
            if upload and self._deaf and not self.broken.is_set() and error.code() == grpc.StatusCode.DATA_LOSS:
                self.broken.set()
                context.abort(grpc.StatusCode.UNAVAILABLE, "a cable was pulled")
            context.abort(error.code(), error.details())

    def _frames(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        for frame in requests:
            spoilt = self._spoil(frame)
            if spoilt != frame:
                self.spoilt += 1
                self.meddled.set()
            yield spoilt


@pytest.fixture
def proxy():
    running: list[Proxy] = []

    def make(*arguments: Any, **keywords: Any) -> Proxy:
        running.append(Proxy(*arguments, **keywords))
        return running[-1]

    yield make
    for one in running:
        one.close()


def train(dump, collector: str, *arguments: str, task: str = "statistics", until: threading.Event | None = None,
          **environment: str) -> str:
    """What the job said to stderr. With "wait" it trains after `until`."""
    job = subprocess.Popen([sys.executable, "-c", SCRIPT, dump.config(level="L1", task=task), *arguments], text=True,
                           stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                           env={**os.environ, "RANKPROBE_COLLECTOR": collector, "RANK": "0", "RANKPROBE_RUN": "poison",
                                **environment})
    if until is not None:
        assert until.wait(120), job.poll()
    said = job.communicate(timeout=240)[1]
    assert job.returncode == 0 and "trained" in said, said
    return said


def refusals(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if "rankprobe: the collector refuses" in line]


def ledger(collector) -> tuple[str, dict[int, list[dict]]]:
    """What `rankprobe ledger` prints, and its accounts by step."""
    text = collector.cli("ledger", "--run", "poison", check=False)
    assert text.returncode == 1, text  # something is missing
    lines = collector.cli("ledger", "--run", "poison", "--json", check=False).stdout.splitlines()
    steps: dict[int, list[dict]] = {}
    for line in lines:
        account = json.loads(line)
        steps.setdefault(int(account.get("step", 0)), []).append(account)
    return text.stdout, steps


def gaps(collector, tmp_path) -> list[dict]:
    """Of the manifest of an export."""
    tree = tmp_path / "tree"
    assert collector.cli("export", "--run", "poison", "-o", tree, check=False).returncode == 1
    for step in (0, 1, 3):
        names = json.loads((tree / f"step{step}" / "rank0" / "dump.json").read_text())["data"]
        assert "Functional.linear.0.forward" in names, step
    return json.loads((tree / "manifest.json").read_text())["gaps"]


def whole(accounts: dict[int, list[dict]], *steps: int) -> bool:
    return all(account["state"] == "STATE_WHOLE" for step in steps for account in accounts[step])


@pytest.mark.parametrize("deaf", [False, True], ids=["", "the reason is lost"])
def test_refused_records_are_seen_everywhere(dump, collector, proxy, tmp_path, deaf) -> None:
    meddler = proxy(collector.address, spoil_records, deaf)
    said = refusals(train(dump, meddler.address, "poison"))
    # Frames that were sent together may be sent once more, each by itself.
    assert meddler.spoilt >= TRIES and meddler.broken.is_set() == deaf
    assert len(said) == 1 and f"of step 2, they are lost: {DAMAGED}" in said[0], said

    text, accounts = ledger(collector)
    assert whole(accounts, 0, 1, 3)
    lost = [gap for gap in accounts[2][0]["gaps"] if gap["reason"] == "COLLECTOR_REFUSED"]
    assert len(lost) == 1 and int(lost[0]["records"]) > 0 and DAMAGED in lost[0]["detail"], accounts[2]
    (frames,) = accounts[-1]
    assert [gap["reason"] for gap in frames["gaps"]] == ["COLLECTOR_REFUSED"]
    assert frames["gaps"][0]["detail"].startswith("frame ")
    assert "step 2 rank 0: lost COLLECTOR_REFUSED: " in text and "nothing lost" not in text, text

    places = {(gap["step"], gap["reason"]) for gap in gaps(collector, tmp_path)}
    assert {(2, "COLLECTOR_REFUSED"), (-1, "COLLECTOR_REFUSED")} <= places
    assert {step for step, _ in places} == {2, -1}
    assert "COLLECTOR_REFUSED" in (tmp_path / "tree/step2/rank0/dump_error_info.log").read_text()


def test_a_refused_piece_of_a_payload_has_its_reason(dump, collector, proxy, tmp_path) -> None:
    meddler = proxy(collector.address, spoil_payload)
    said = refusals(train(dump, meddler.address, "poison", task="tensor"))
    assert meddler.spoilt >= TRIES
    assert len(said) == 1 and f"a payload of 256 bytes, it is lost: {DAMAGED}" in said[0], said

    text, accounts = ledger(collector)
    assert whole(accounts, 0, 1, 3)
    # Whoever refers to it: what made the tensor, too.
    lost = accounts[2][0]["gaps"]
    assert all(gap["reason"] == "COLLECTOR_REFUSED" and int(gap["payloads"]) == 1 for gap in lost), lost
    assert all(DAMAGED in gap["detail"] for gap in lost), lost
    entries = {gap["entry"] for gap in lost}
    assert ENTRY.decode() in entries
    assert "COLLECTOR_REFUSED" in text and "NOT_STORED" not in text, text
    told = [gap for gap in gaps(collector, tmp_path) if gap["step"] == 2]
    assert {(gap["reason"], gap["entry"]) for gap in told} == {("COLLECTOR_REFUSED", entry) for entry in entries}


def test_what_a_spool_delivers_is_refused_in_the_ledger_too(dump, collector, proxy, tmp_path) -> None:
    spool = {"RANKPROBE_ON_COLLECTOR_MISSING": "spool", "RANKPROBE_SPOOL": str(tmp_path / "spool")}
    kept = train(dump, "127.0.0.1:1", "poison", **spool)  # nothing listens on port 1
    assert f"payloads are kept in {tmp_path / 'spool'}, the next process that records with it sends them" in kept, kept
    meddler = proxy(collector.address, spoil_records)
    # It trains once a collector takes the spool: its own steps follow those, and none goes into a spool of its own.
    said = refusals(train(dump, meddler.address, "wait", until=meddler.meddled, **spool))
    assert meddler.spoilt >= TRIES
    assert len(said) == 1 and "of the spool of process" in said[0], said
    text, accounts = ledger(collector)
    assert whole(accounts, 0, 1, 3) and len(accounts[0]) == 2
    assert "rank 0: lost COLLECTOR_REFUSED: (frame " in text, text
    (frames,) = accounts[-1]
    assert len(frames["gaps"]) == 1 and DAMAGED in frames["gaps"][0]["detail"]
    # The dead process counted them, if what it counted was not in that frame too.
    broken = [account for account in accounts[2] if account["state"] != "STATE_WHOLE"]
    assert len(accounts[2]) - len(broken) == 1, accounts[2]
    assert all(gap["reason"] == "NOT_RECEIVED" for account in broken for gap in account.get("gaps", [])), broken
