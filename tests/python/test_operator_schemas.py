# SPDX-License-Identifier: Apache-2.0
"""Use of the schema of a library's operator: buffers that it writes are no inputs to be judged by,
addresses and caches of a server are no data."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")

from rankprobe.pytorch import PrecisionDebugger  # noqa: E402

BUILD = pathlib.Path(os.environ["RANKPROBE_BUILD_DIR"])
_libraries: dict[str, torch.library.Library] = {}  # as long as the process


def _operator(space: str, schema: str, function) -> None:
    library = _libraries.get(space) or _libraries.setdefault(space, torch.library.Library(space, "DEF"))
    library.define(schema)
    library.impl(schema.partition("(")[0], function, "CPU")


def _scale_into(out: torch.Tensor, x: torch.Tensor, by: float = 2.0) -> None:
    out.copy_(x * by)


def _step(function) -> None:
    PrecisionDebugger.start()
    function()
    PrecisionDebugger.stop()
    PrecisionDebugger.step()


def _cli(*words: object) -> subprocess.CompletedProcess:
    return subprocess.run([str(BUILD / "bin/rankprobe"), *map(str, words)], capture_output=True, text=True, timeout=60)


def _notes(directory: pathlib.Path) -> dict:
    return json.loads((directory / "tensor_notes.json").read_text())


def test_what_lay_in_a_buffer_is_no_origin(dump, tmp_path) -> None:
    _operator("rpwrites", "scale_into(Tensor(a!) out, Tensor x, float by=2.0) -> ()", _scale_into)
    _operator("rpwrites", "copy_all(Tensor(a!)[] outs, Tensor x) -> ()", lambda outs, x: ([o.copy_(x) for o in outs], None)[1])
    dump.debugger(custom_op_namespaces=["rpwrites"])
    for lay_there in (float("nan"), 3.0):
        x, out, named, listed = torch.ones(3, 2), *(torch.full((3, 2), lay_there) for _ in range(3))

        def served() -> None:
            torch.ops.rpwrites.scale_into(out, x)
            torch.ops.rpwrites.scale_into(out=named, x=x, by=0.5)
            torch.ops.rpwrites.copy_all([listed], x)

        _step(served)
    # dump.json is msprobe's: the buffer is an input, and nothing comes back.
    record = dump.data(0)["rpwrites.scale_into.0.forward"]
    assert record["input_args"][0]["shape"] == [3, 2] and record["output"] == [None]
    new, old = dump.rank_directory(0), dump.rank_directory(1)
    assert _notes(new) == {"rpwrites.scale_into.0.forward.input.0": {"written": True},
                           "rpwrites.scale_into.1.forward.input.out": {"written": True},
                           "rpwrites.copy_all.0.forward.input.0.0": {"written": True}}
    # Here for a look that can fail.
    plain = {}
    for name, directory in (("new", new), ("old", old)):
        plain[name] = tmp_path / name
        plain[name].mkdir()
        (plain[name] / "dump.json").write_text((directory / "dump.json").read_text())
    said = _cli("first-divergence", plain["new"], plain["old"])
    assert said.returncode == 1 and "rpwrites.scale_into.0.forward.input.0" in said.stdout
    said = _cli("first-divergence", new, old)
    assert said.returncode == 0, said.stdout + said.stderr
    for directory, expected in ((plain["new"], "rpwrites"), (new, "")):
        found = _cli("overflow_check", "-i", directory.parent if directory == new else directory, "-o", tmp_path / "report").stdout
        assert ("rpwrites" in found) == bool(expected), found


def test_of_a_servers_operators_what_they_write_comes_back(dump, monkeypatch) -> None:
    """In a program that has imported vLLM its namespaces are recorded without a word in the config."""
    _operator("vllm", "rp_mm(Tensor(a!) c, Tensor a, Tensor? bias, Tensor handler_tensor) -> ()",
              lambda c, a, bias, handler_tensor: (c.copy_(a * 2), None)[1])
    _operator("vllm", "rp_attention(Tensor query, Tensor(a!) key_cache, *, Tensor(b!) output, Tensor cos_sin_cache, "
                      "Tensor? value_cache, str kv_cache_dtype) -> ()",
              lambda query, key_cache, *, output, cos_sin_cache, value_cache, kv_cache_dtype: (output.copy_(query + 1), None)[1])
    _operator("vllm", "rp_create_handler(Tensor b, int size) -> int", lambda b, size: 140737488355328)
    _operator("vllm", "rp_rotate(Tensor positions, Tensor(a!) query, Tensor(b!)? key) -> ()",
              lambda positions, query, key: (query.add_(1), None)[1])

    def served() -> None:
        a = torch.ones(2, 2)
        torch.ops.vllm.rp_mm(torch.zeros(2, 2), a, None, torch.tensor(140737488355328))
        torch.ops.vllm.rp_attention(a, torch.zeros(4), output=torch.full((2, 2), 7.0), cos_sin_cache=a, value_cache=None,
                                    kv_cache_dtype="auto")
        torch.ops.vllm.rp_create_handler(a, 3)
        torch.ops.vllm.rp_rotate(a, a, None)

    dump.debugger()
    _step(served)
    assert not any(name.startswith("vllm.") for name in dump.data(0))
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    _step(served)
    data = dump.data(1)
    address = {"type": "str", "value": "not recorded: an address"}
    cache = {"type": "str", "value": "not recorded: a cache, which holds other requests too"}
    record = data["vllm.rp_mm.0.forward"]
    assert record["input_args"][2:] == [None, address]
    assert [value["Max"] for value in record["output"]] == [2.0]
    record = data["vllm.rp_attention.0.forward"]
    assert record["input_args"][1] == cache
    kwargs = record["input_kwargs"]
    assert kwargs["value_cache"] is None and kwargs["kv_cache_dtype"] == {"type": "str", "value": "auto"}
    assert kwargs["cos_sin_cache"]["Max"] == 1.0 and kwargs["output"]["Max"] == 7.0
    assert [value["Max"] for value in record["output"]] == [2.0]
    assert data["vllm.rp_create_handler.0.forward"]["output"] == [address]
    # Read and written: as an input it is not judged, as an output it is.
    record = data["vllm.rp_rotate.0.forward"]
    assert record["input_args"][1]["Max"] == 1.0
    assert [None if value is None else value["Max"] for value in record["output"]] == [2.0, None]
    assert _notes(dump.rank_directory(1)) == {
        f"vllm.{name}": {"written": True} for name in (
            "rp_mm.0.forward.input.0", "rp_attention.0.forward.input.output", "rp_rotate.0.forward.input.1")}
    PrecisionDebugger._instance.close()
    assert "rankprobe" not in type(torch.ops.vllm.rp_mm).__module__
