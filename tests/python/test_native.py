# SPDX-License-Identifier: Apache-2.0
"""The native session against a real collector: what is pushed comes out of the export."""

import json
import math
import pathlib
import socket
import subprocess
import sys
import threading
import zlib

import numpy as np
import pytest

import harness
import rankprobe

torch = pytest.importorskip("torch")


def config(task="statistics", level="L1", **section):
    return json.dumps({"task": task, "dump_path": "./dump", "rank": [], "step": [], "level": level, task: section})


def connect(collector, run="r", rank=0, **kwargs):
    session = rankprobe.Session(collector.address, run=run, rank=rank, **kwargs)
    session.wait_connected(20)
    return session


def push(session, *calls):
    """One step with the calls given as (op, inputs, outputs)."""
    session.start()
    names = [session.call("Torch", op, inputs, outputs) for op, inputs, outputs in calls]
    session.stop()
    session.step()
    return names


def export(collector, tmp_path, run="r", check=True):
    tree = tmp_path / "tree"
    result = collector.cli("export", "--run", run, "-o", tree, check=check)
    return tree, result


def first_input(tree, entry, rank=0, step=0):
    data = harness.load_dump(tree / f"step{step}" / f"rank{rank}")["data"]
    return data[entry]["input_args"][0]


@pytest.mark.parametrize("modules", ["_native, _analysis", "_analysis, _native"])
def test_a_program_that_records_can_compare(modules):
    """libprotobuf ends a process where two extensions bring the same messages."""
    done = subprocess.run([sys.executable, "-c", f"from rankprobe import {modules}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_numpy_and_torch_tensors_have_the_same_record(collector, tmp_path):
    values = np.random.default_rng(1).standard_normal((7, 5)).astype(np.float32)
    session = connect(collector, config_json=config(summary_mode="md5"))
    push(session, ("one", [values], [values]), ("two", [torch.from_numpy(values)], []))
    session.close()
    tree, _ = export(collector, tmp_path)
    one, two = first_input(tree, "Torch.one.0.forward"), first_input(tree, "Torch.two.0.forward")
    assert one == two
    assert one["dtype"] == "torch.float32" and one["shape"] == [7, 5]
    assert one["Max"] == float(values.max()) and one["Min"] == float(values.min())
    assert one["Mean"] == pytest.approx(float(values.mean()), rel=1e-5)
    assert one["Norm"] == pytest.approx(float(np.linalg.norm(values)), rel=1e-5)
    assert one["md5"] == f"{zlib.crc32(values.tobytes()):08x}"


def test_nan_inf_empty_and_strided(collector, tmp_path):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    session = connect(collector, config_json=config("tensor", list=["Torch."]))
    push(
        session,
        ("nan", [np.array([1, math.nan, 3], np.float32)], []),
        ("inf", [np.array([-math.inf, 0, math.inf], np.float32)], []),
        ("empty", [np.zeros((0, 4), np.float32)], []),
        ("columns", [base[:, ::2]], []),
        ("turned", [torch.from_numpy(base).t()], []),
        ("scalar", [torch.tensor(2.5)], []),
        ("flags", [np.array([True, False])], []),
    )
    session.close()
    tree, _ = export(collector, tmp_path)
    rank = tree / "step0" / "rank0"
    text = (rank / "dump.json").read_text()
    assert "NaN" in text and "Infinity" in text
    data = json.loads(text)["data"]
    empty = data["Torch.empty.0.forward"]["input_args"][0]
    assert empty["shape"] == [0, 4] and empty["Max"] is None

    def payload(entry):
        name = data[entry]["input_args"][0]["data_name"]
        return torch.load(rank / "dump_tensor_data" / name)

    assert payload("Torch.columns.0.forward").numpy().tolist() == base[:, ::2].tolist()
    assert payload("Torch.turned.0.forward").numpy().tolist() == base.T.tolist()
    assert payload("Torch.scalar.0.forward").item() == 2.5
    assert "data_name" not in empty, "no bytes, no file: as msprobe has it"
    assert payload("Torch.flags.0.forward").tolist() == [True, False]
    assert math.isnan(payload("Torch.nan.0.forward")[1].item())


def test_names_cannot_leave_the_tree(collector, tmp_path):
    session = connect(collector, config_json=config("tensor", list=["Torch."]))
    value = np.ones(3, np.float32)
    names = push(session, ("../../../escaped", [value], []), ("a/b", [value], []), ("c\0d", [value], []))
    session.close()
    tree, _ = export(collector, tmp_path)
    assert not list(tmp_path.glob("**/escaped*")), "a file left its directory"
    data = harness.load_dump(tree / "step0" / "rank0")["data"]
    assert list(data) == names, "dump.json keeps the names as they are"
    stored = {p.name for p in (tree / "step0" / "rank0" / "dump_tensor_data").iterdir()}
    listed = {data[n]["input_args"][0]["data_name"] for n in names}
    assert listed == stored and len(stored) == 3


def test_a_tensor_of_five_gib_keeps_its_statistics_and_is_named_as_a_gap(collector, tmp_path):
    # Untouched pages of one zero page: the machine need not have 5 GiB.
    huge = np.zeros((5, 1 << 28), np.float32)
    session = connect(collector, config_json=config("tensor", list=["Torch."]))
    push(session, ("huge", [huge], []), ("small", [np.ones(4, np.float32)], []))
    stats = session.stats()
    session.close()
    assert stats["lost_payloads"] == 1
    tree, result = export(collector, tmp_path, check=False)
    assert result.returncode == 1, "an export with a gap says so"
    record = first_input(tree, "Torch.huge.0.forward")
    assert record["shape"] == [5, 1 << 28] and record["Max"] == 0 and record["Norm"] == 0
    manifest = json.loads((tree / "manifest.json").read_text())
    gaps = json.dumps(manifest["gaps"])
    assert "Torch.huge.0.forward" in gaps and "TOO_LARGE" in gaps.upper()
    assert (tree / "step0" / "rank0" / "dump_tensor_data" / "Torch.small.0.forward.input.0.pt").exists()


def test_a_second_process_with_the_same_rank_is_told(collector):
    first = connect(collector, rank=3)
    second = rankprobe.Session(collector.address, run="r", rank=3)
    with pytest.raises(RuntimeError, match="rank 3"):
        second.wait_connected(20)
    push(first, ("ok", [np.ones(2, np.float32)], []))
    assert first.stats()["connected"]
    second.close()
    first.close()


def test_unreachable_collector_is_named_and_harms_nothing(monkeypatch):
    monkeypatch.setenv("RANKPROBE_WAIT_MS", "3600000")  # for one that was never there nobody waits so long
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    session = rankprobe.Session(f"127.0.0.1:{port}", run="r", rank=0, config_json=config())
    with pytest.raises((TimeoutError, RuntimeError), match=str(port)):
        session.wait_connected(1.0)
    push(session, ("a", [np.ones(4, np.float32)], []))
    session.close()


def test_a_peer_of_another_protocol_is_not_waited_for_silently():
    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer():
            while True:
                try:
                    connection, _ = server.accept()
                    connection.sendall(b"SSH-2.0-Other\r\n")
                    connection.close()
                except OSError:
                    return

        threading.Thread(target=answer, daemon=True).start()
        session = rankprobe.Session(f"127.0.0.1:{server.getsockname()[1]}", run="r", rank=0)
        with pytest.raises((TimeoutError, RuntimeError)) as caught:
            session.wait_connected(3.0)
        assert "127.0.0.1" in str(caught.value)
        session.close()


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:notaport", "127.0.0.1:99999"])
def test_bad_addresses(address):
    with pytest.raises((ValueError, RuntimeError)) as caught:
        rankprobe.Session(address, run="r", rank=0).wait_connected(2.0)
    assert address in str(caught.value)


def test_a_bad_config_names_every_fault():
    with pytest.raises(ValueError) as caught:
        rankprobe.Session("127.0.0.1:1", config_json='{"task": "what", "level": "L7"}')
    assert "task" in str(caught.value) and "level" in str(caught.value)


@pytest.mark.parametrize("value, error", [
    ("text", TypeError),
    (np.array(["a"]), ValueError),
    (np.zeros(4, dtype=[("a", np.float32), ("b", np.int8)])["a"], ValueError),
])
def test_what_is_not_a_tensor_is_refused(collector, value, error):
    session = connect(collector, config_json=config())
    session.start()
    with pytest.raises(error):
        session.call("Torch", "x", [value], [])
    assert session.call("Torch", "y", [np.ones(1, np.float32)], []) == "Torch.y.0.forward"
    session.close()


def test_a_collector_that_restarts_gets_everything_once(collector, tmp_path):
    session = connect(collector, config_json=config())
    push(session, *[("before", [np.full(4, i, np.float32)], []) for i in range(50)])
    collector.kill()
    session.start()
    for i in range(50):
        session.call("Torch", "during", [np.full(4, i, np.float32)], [])
    collector.start()
    session.wait_connected(30)
    session.stop()
    session.step()
    session.close()
    tree, _ = export(collector, tmp_path)
    before = harness.load_dump(tree / "step0" / "rank0")["data"]
    during = harness.load_dump(tree / "step1" / "rank0")["data"]
    assert list(before) == [f"Torch.before.{i}.forward" for i in range(50)]
    assert list(during) == [f"Torch.during.{i}.forward" for i in range(50)]
    assert during["Torch.during.7.forward"]["input_args"][0]["Max"] == 7


def test_sigterm_drains(collector, start_collector, tmp_path):
    session = connect(collector, config_json=config("tensor", list=["Torch."]))
    session.start()
    for i in range(200):
        session.call("Torch", "x", [np.full(1000, i, np.float32)], [])
    session.stop()
    session.step()
    assert collector.stop() == 0
    assert "draining" in collector.log_text()
    session.close()
    collector.start()
    # The rank was dumping when the collector ended and has not come back: that is said, whole as its step is.
    tree, _ = export(collector, tmp_path, check=False)
    data = harness.load_dump(tree / "step0" / "rank0")["data"]
    assert len(data) == 200
    gaps = json.loads((tree / "manifest.json").read_text())["gaps"]
    assert {gap["reason"] for gap in gaps} <= {"NOT_HEARD_OF"}, gaps


def test_server_side_export_stays_below_its_root(start_collector, tmp_path):
    root = tmp_path / "exports"
    root.mkdir()
    (tmp_path / "elsewhere").mkdir()
    collector = start_collector("--export-root", str(root))
    session = connect(collector, config_json=config())
    push(session, ("x", [np.ones(4, np.float32)], []))
    session.close()
    collector.cli("export", "--run", "r", "--server-dir", root / "one")
    assert (root / "one" / "step0" / "rank0" / "dump.json").exists()
    for bad in (tmp_path / "elsewhere" / "x", root / ".." / "elsewhere" / "y", pathlib.Path("relative")):
        result = collector.cli("export", "--run", "r", "--server-dir", bad, check=False)
        assert result.returncode == 5 or result.returncode == 2, result.stderr
        assert not list((tmp_path / "elsewhere").iterdir())
    (root / "link").symlink_to(tmp_path / "elsewhere")
    result = collector.cli("export", "--run", "r", "--server-dir", root / "link" / "z", check=False)
    assert result.returncode != 0 and not list((tmp_path / "elsewhere").iterdir())


def test_unknown_rank_is_written_under_the_process(collector, tmp_path, monkeypatch):
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    session = rankprobe.Session(collector.address, run="r", config_json=config())
    session.wait_connected(20)
    push(session, ("x", [np.ones(4, np.float32)], []))
    session.close()
    tree, _ = export(collector, tmp_path)
    assert [p.name[:4] for p in (tree / "step0").iterdir()] == ["proc"]
