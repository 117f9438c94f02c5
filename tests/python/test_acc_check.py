# SPDX-License-Identifier: Apache-2.0
"""`rankprobe acc_check`: its table, its lists, two devices, a run of the archive."""

import csv
import json
import math
import os
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest

import rankprobe

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("RANKPROBE_BUILD_DIR", ROOT / "build" / "release")) / "bin" / "rankprobe"


def test_acc_check(tmp_path):
    torch = pytest.importorskip("torch")
    x = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4, 8], "Max": 1.0, "Min": -1.0, "Mean": 0.0,
         "Norm": 3.0, "requires_grad": True}
    data = {f"{name}.forward": {"input_args": args, "input_kwargs": kwargs, "output": [x]} for name, args, kwargs in (
        ("Torch.tanh.0", [x], {}), ("Functional.softmax.0", [x], {"dim": {"type": "int", "value": 1}}),
        ("Functional.dropout.0", [x], {}), ("Torch.no_such_op.0", [x], {}), ("Module.a.A.forward.0", [x], {}))}
    info = tmp_path / "dump.json"
    info.write_text(json.dumps({"task": "statistics", "data": data}))
    python = {"RANKPROBE_PYTHON": sys.executable}
    done = subprocess.run([BIN, "acc_check", "-api_info", info, "-o", tmp_path / "out", "--json"], text=True,
                          capture_output=True, timeout=120, env=os.environ | python)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["pass"], report["error"], report["SKIP"]) == (2, 0, 3)
    with open(report["result"], newline="") as file:
        rows = {row[0]: row for row in csv.reader(file)}
    assert rows["Functional.softmax.0"][1:3] == ["pass", "pass"]
    assert "reproducible" in rows["Functional.dropout.0"][3]
    # Going on does not repeat what is there.
    done = subprocess.run([BIN, "acc_check", "-api_info", info, "-o", tmp_path / "out", "-csv_path", report["result"],
                           "--json"], text=True, capture_output=True, timeout=120, env=os.environ | python)
    assert json.loads(done.stdout)["pass"] == 0

    from rankprobe import acc_check

    golden = torch.linspace(1, 2, 64, dtype=torch.float64)
    assert acc_check.measure("relu", golden.float(), golden)["Status"] == "pass"
    wrong = golden.float()
    wrong[3] += 0.01
    assert acc_check.measure("relu", wrong, golden)["Status"] == "error"
    wrong[3] = math.nan
    assert acc_check.measure("relu", wrong, golden)["Inf/Nan Err Ratio"] > 0
    # A directory of two jobs without ranks.
    for pid in (7, 8):
        (tmp_path / "dump" / "step0" / f"proc{pid}").mkdir(parents=True)
        (tmp_path / "dump" / "step0" / f"proc{pid}" / "dump.json").write_text(json.dumps({"task": "statistics", "data": data if pid == 8 else {}}))

    def of_jobs(*words):
        return subprocess.run([BIN, "acc_check", tmp_path / "dump" / "step0", *words, "-o", tmp_path / "out", "--json"], text=True,
                              capture_output=True, timeout=120, env=os.environ | python)

    done = of_jobs("--job=2")
    assert json.loads(done.stdout)["pass"] == 2 and "Read: job 2" in done.stderr, done.stderr
    for words, said in (((), "choose one with --job N"), (("--job", "3"), "--job 3: "), (("--job", "x"), '--job: "x" is not'),
                        (("--job",), '--job: "-o" is not')):
        done = of_jobs(*words)
        assert done.returncode == 2 and said in done.stderr, done.stderr
    done = subprocess.run([BIN, "acc_check", info, "--job", "1"], text=True, capture_output=True, timeout=120, env=os.environ | python)
    assert done.returncode == 2 and "--job chooses among the jobs" in done.stderr, done.stderr
    bad = subprocess.run([BIN, "acc_check", "-api_info", tmp_path / "none.json"], text=True, capture_output=True,
                         timeout=120, env=os.environ | python)
    assert bad.returncode == 2 and "none.json" in bad.stderr


def test_acc_check_lists(tmp_path, monkeypatch, capsys):
    """A28: lists of the command line and of config.json, against the APIs that are dumped; error_data_path; C9."""
    pytest.importorskip("torch")
    from rankprobe import _inputs, acc_check

    x = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], "Max": 1.0, "Min": -1.0, "Mean": 0.0, "Norm": 1.0,
         "requires_grad": False}
    data = {f"Torch.{name}.0.forward": {"input_args": [x], "input_kwargs": {}, "output": [x]}
            for name in ("tanh", "sin", "cos", "abs")}
    info, config = tmp_path / "dump.json", tmp_path / "config.json"
    info.write_text(json.dumps({"task": "statistics", "data": data}))
    info.chmod(0o644)
    tmp_path.chmod(0o755)
    calls = []

    def run(*words, section=None):
        """The APIs that were checked, or the line of a refusal."""
        calls.append(tmp_path / f"out{len(calls)}")
        if section is not None:
            config.write_text(json.dumps({"task": "statistics", "acc_check": section}))
            config.chmod(0o644)
            words = (*words, "-config", config)
        monkeypatch.setattr(_inputs, "_warned", set())
        monkeypatch.setattr(sys, "argv", ["acc_check", "-api_info", str(info), "-o", str(calls[-1]), *map(str, words),
                                          "--json"])
        old = os.umask(0)
        try:
            code = acc_check.main()
        finally:
            os.umask(old)
        said = capsys.readouterr()
        if code == 2:
            assert said.err.count("\n") == 1 and not said.out and not calls[-1].exists(), said
            return said.err
        assert code == 0
        report = json.loads(said.out)
        assert os.stat(report["result"]).st_mode & 0o777 == 0o640 and calls[-1].stat().st_mode & 0o777 == 0o750
        with open(report["result"], newline="") as file:
            return {row[0].split(".")[1] for row in list(csv.reader(file))[1:]}, said.err

    # Lists that meet: what is in both is left out; disjoint: the white one counts.
    assert run("--white_list", "sin", "cos", "--black_list", "cos", "abs") == ({"sin"}, "")
    assert run(section={"white_list": ["sin"], "black_list": ["abs"]}) == ({"sin"}, "")
    assert run(section={"black_list": ["abs", "cos", "tanh"]}) == ({"sin"}, "")
    assert run("--white_list", "tanh", section={"white_list": ["sin"], "black_list": []}) == ({"tanh"}, "")
    checked, warning = run(section={"white_list": ["sin"], "whitelist": []})
    assert checked == {"sin"} and "acc_check.whitelist is unknown" in warning
    assert "no_such_op" in run("--black_list", "no_such_op")
    assert "no_such_op" in run(section={"white_list": ["sin", "no_such_op"]})
    assert "expected a list" in run(section={"white_list": "sin"})
    assert "error_data_path" in run(section={"error_data_path": str(tmp_path / "nowhere")})
    for bad in (tmp_path, tmp_path / "none.json"):
        assert str(bad) in run("-config", bad)
    # Files that others can change, and links.
    info.chmod(0o666)
    assert "can be changed by other users" in run()
    assert "because of --force" in run("--force", "--white_list", "sin")[1]
    info.chmod(0o644)
    config.rename(tmp_path / "real.json")
    config.symlink_to(tmp_path / "real.json")
    assert "is a symbolic link" in run("-config", config)


def test_acc_check_calls_listed_functions_only(tmp_path, monkeypatch, capsys):
    """A dump that names torch.load, torch.save or from_file, or hands a path or a function to a listed one, runs nothing."""
    torch = pytest.importorskip("torch")
    from rankprobe import acc_check

    class Planted:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Planted()))
    victim = tmp_path / "victim"
    victim.write_text("precious")
    x = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 2], "Max": 1.0, "Min": 0.0, "Mean": 0.5, "Norm": 1.0,
         "requires_grad": False}
    size = {"type": "int", "value": 4}

    def text(value):
        return {"type": "str", "value": str(value)}

    hostile = {
        "Torch.load.0": [text(tmp_path / "evil.pkl")], "Torch.save.0": [x, text(victim)],
        "Torch.from_file.0": [text(victim), {"type": "bool", "value": True}, size], "Torch.set_num_threads.0": [size],
        "Torch.manual_seed.0": [size], "Torch.set_default_dtype.0": [{"type": "torch.dtype", "value": "torch.float64"}],
        "Torch.import_ir_module.0": [text(victim)], "Tensor.__reduce_ex__.0": [x, size], "Tensor.__class__.0": [size],
        "Tensor.map_.0": [x, x, {"type": "torch.dtype", "value": "torch.save"}], "Functional.os.0": [],
        "Torch.add.0": [x, {"type": "torch.dtype", "value": "torch.load"}],
        "Torch.add.1": [x, {"type": "torch.memory_format", "format": "load"}], "Torch.add.2": [x, text(victim)],
        "Torch.add.3": [x, {"type": "int", "value": str(victim)}], "Torch.add.4": [x, {"type": "int", "value": [str(victim)]}],
        "Torch.add.5": [x, {"type": "slice", "value": [str(victim)]}], "Torch.einsum.0": [text(victim), x],
        "Functional.triplet_margin_with_distance_loss.0": [x, x, x]}
    honest = {"Torch.einsum.1": [text("ij,jk->ik"), x, x], "Torch.div.0": [x, x], "Torch.linspace.0": [size, size, size],
              "Functional.mse_loss.0": [x, x], "Functional.gelu.0": [x], "Torch.matrix_exp.0": [x], "Torch.svdvals.0": [x]}
    kwargs = {"Torch.div.0": {"rounding_mode": text("floor")}, "Functional.mse_loss.0": {"reduction": text("sum")},
              "Functional.gelu.0": {"approximate": text("tanh")},
              "Torch.linspace.0": {"dtype": {"type": "torch.dtype", "value": "torch.float32"}}}
    data = {f"{name}.forward": {"input_args": args, "input_kwargs": kwargs.get(name, {}), "output": [x]}
            for name, args in {**hostile, **honest}.items()}
    info = tmp_path / "dump.json"
    info.write_text(json.dumps({"task": "statistics", "data": data}))
    info.chmod(0o644)
    called = []
    execute = acc_check.execute
    monkeypatch.setattr(acc_check, "execute", lambda *words: called.append(words[0]) or execute(*words))
    state, seed = (torch.get_default_dtype(), torch.get_num_threads()), torch.initial_seed()
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # acc_check's own
    monkeypatch.setattr(sys, "argv", ["acc_check", "-api_info", str(info), "-o", str(tmp_path / "out"), "--json"])
    assert acc_check.main() == 0
    report = json.loads(capsys.readouterr().out)
    with open(report["result"], newline="") as file:
        rows = {row[0]: row[1:] for row in csv.reader(file)}
    for name in hostile:
        assert rows[name][:2] == ["SKIP", "SKIP"], (name, rows[name])
        assert any(why in rows[name][2] for why in ("it is not called", "no such value", "of this PyTorch")), (name, rows[name])
    for name in honest:
        assert rows[name][0] == "pass", (name, rows[name])
    assert len(called) == 2 * len(honest), "nothing of the others was called"
    assert not (tmp_path / "ran").exists() and victim.read_text() == "precious"
    assert (torch.get_default_dtype(), torch.get_num_threads()) == state and torch.initial_seed() == seed


def test_acc_check_of_two_devices(tmp_path, monkeypatch, capsys):
    """Details of one machine beside those of another: the same, then one that errs more, then bad files."""
    pytest.importorskip("torch")
    x = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [16, 32], "Max": 1.0, "Min": -1.0, "Mean": 0.0,
         "Norm": 3.0, "requires_grad": True}
    data = {f"{name}.forward": {"input_args": [x, x][:count], "input_kwargs": {}, "output": [x]}
            for name, count in (("Torch.exp.0", 1), ("Torch.mul.0", 2), ("Torch.gt.0", 2))}
    info = tmp_path / "dump.json"
    info.write_text(json.dumps({"task": "statistics", "data": data}))

    python = os.environ | {"RANKPROBE_PYTHON": sys.executable}
    done = subprocess.run([BIN, "acc_check", "-api_info", info, "-o", tmp_path / "a", "--json"], text=True,
                          capture_output=True, timeout=120, env=python)
    details = pathlib.Path(json.loads(done.stdout)["details"])
    done = subprocess.run([BIN, "acc_check", "--compare", details, details, "-o", tmp_path / "same", "--json"], text=True,
                          capture_output=True, timeout=120, env=python)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) | {"result": "", "details": ""} == {"result": "", "details": "", "pass": 3, "error": 0,
                                                                       "SKIP": 0}

    def changed(column, value, row="Torch.exp.0.forward.output.0"):
        with open(details, newline="") as file:
            rows = list(csv.DictReader(file))
        next(r for r in rows if r["API Name"] == row)[column] = value
        with open(tmp_path / "changed.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        return tmp_path / "changed.csv"

    from rankprobe import acc_check, acc_compare

    def weighed(device, reference=details):
        return {row[0]: row[1:] for row in acc_compare.compare(str(device), str(reference))[0]}

    for column, value, fault in (("Max Rel Err", 0.001, "max_rel"), ("RMSE", 0.001, "rmse"),
                                 ("Inf/Nan Err Ratio", 0.5, "special_share"), ("RMSE", "nan", "rmse")):
        rows = weighed(changed(column, value))
        assert rows["Torch.exp.0"] == ["error", "pass", fault] and rows["Torch.mul.0"][:2] == ["pass", "pass"]
    # Far below what a reference's error counts as, more is not a fault.
    assert weighed(changed("RMSE", 1e-5))["Torch.exp.0"][0] == "pass"
    assert weighed(changed("Rel Err Ratio", 0.1, "Torch.gt.0.forward.output.0"))["Torch.gt.0"][0] == "error"
    assert weighed(changed("Status", "SKIP"))["Torch.exp.0"][0] == "SKIP"
    assert weighed(changed("Dtype", "torch.float16"))["Torch.exp.0"][0] == "error"
    fewer = tmp_path / "fewer.csv"
    fewer.write_text("".join(line for line in details.read_text().splitlines(True) if "Torch.mul" not in line))
    assert weighed(details, fewer)["Torch.mul.0"][:2] == ["SKIP", "SKIP"]
    bad = tmp_path / "bad"
    for pair in ((info, details), (details, tmp_path / "none.csv"), (changed("RMSE", "big"), details)):
        monkeypatch.setattr(sys, "argv", ["acc_check", "--compare", *map(str, pair), "-o", str(bad)])
        assert acc_check.main() == 2 and capsys.readouterr().err.count("\n") == 1
    for words in (["--compare", "a", "b", "-api_info", "c"], []):
        monkeypatch.setattr(sys, "argv", ["acc_check", *words])
        with pytest.raises(SystemExit, match="2"):
            acc_check.main()
    assert not bad.exists()


def test_acc_check_of_a_run(collector, tmp_path):
    pytest.importorskip("torch")
    config = json.dumps({"task": "tensor", "dump_path": "./dump", "rank": [], "step": [], "level": "L1", "tensor": {}})
    session = rankprobe.Session(collector.address, run="api", rank=0, config_json=config)
    for _ in range(2):
        session.start()
        x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
        session.call("Torch", "tanh", [x], [np.tanh(x)])
        session.call("Torch", "save", [x, x], [x])
        session.stop()
        session.step()
    session.close()
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    def acc_check(name):
        return subprocess.run([BIN, "--collector", collector.address, "acc_check", "-api_info", name, "-o",
                               tmp_path / "out", "--json"], text=True, capture_output=True, timeout=120,
                              env=os.environ | {"RANKPROBE_PYTHON": sys.executable, "TMPDIR": str(temporary)})

    done = acc_check("run:api@1")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["pass"], report["SKIP"]) == (1, 1)
    assert "Torch.save is not in the list" in pathlib.Path(report["result"]).read_text()
    assert not list(temporary.iterdir()), "the streamed dump goes"
    done = acc_check("run:api")
    assert done.returncode == 2 and "several steps" in done.stderr and done.stderr.count("\n") == 1
    assert acc_check("run:none@0").returncode == 4


def test_acc_check_says_whether_a_result_comes_again(tmp_path, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    from rankprobe import acc_check, acc_repeat

    data = tmp_path / "dump_tensor_data"
    data.mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    flipped = torch.tanh(x)
    flipped[1, 2] += 0.125
    outputs = {"Torch.tanh.0": torch.tanh(x), "Torch.tanh.1": flipped, "Torch.sin.0": torch.cos(x), "Torch.exp.0": torch.exp(x),
               "Torch.abs.0": torch.abs(x)}

    def entry(name, value):
        torch.save(value, data / f"{name}.pt")
        (data / f"{name}.pt").chmod(0o644)
        return {"type": "torch.Tensor", "dtype": str(value.dtype), "shape": list(value.shape), "requires_grad": False, "data_name": f"{name}.pt"}

    calls = {f"{name}.forward": {"input_args": [entry(f"{name}.forward.input.0", x)], "input_kwargs": {},
                                 "output": [entry(f"{name}.forward.output.0", value)]} for name, value in outputs.items()}
    calls["Torch.cos.0.forward"] = {"input_args": [{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1, "Min": 0}],
                                    "output": calls["Torch.sin.0.forward"]["output"]}
    info = tmp_path / "dump.json"
    info.write_text(json.dumps({"task": "tensor", "data": calls}))
    info.chmod(0o644)
    drawn = iter(range(100))
    # The code's own fault, and a device that gives another result each time.
    monkeypatch.setattr(torch, "exp", lambda value: torch.Tensor.exp(value) + next(drawn) * 0.25)
    monkeypatch.setattr(torch, "sin", lambda value: torch.Tensor.cos(value) if value.dtype == torch.float32 else torch.Tensor.sin(value))

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["acc_check", "-api_info", str(info), *words])
        return acc_check.main(), capsys.readouterr()

    code, said = run("--repeat", "3", "--json")
    found = {one["call"]: one["verdict"] for one in json.loads(said.out)["calls"]}
    assert code == 1 and found == {"Torch.tanh.0": "pass", "Torch.tanh.1": acc_repeat.ONCE, "Torch.sin.0": acc_repeat.ALWAYS,
                                   "Torch.exp.0": acc_repeat.VARIES, "Torch.abs.0": "pass", "Torch.cos.0": "SKIP"}
    code, said = run("--repeat", "3")
    assert "once  Torch.tanh.1: 3 runs here agree and none gives the recorded result" in said.out
    assert run("--repeat", "1")[0] == 2
    info.write_text(json.dumps({"task": "statistics", "data": calls}))
    code, said = run("--repeat", "3")
    assert code == 2 and "needs the recorded inputs and outputs" in said.err
