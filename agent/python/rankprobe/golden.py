# SPDX-License-Identifier: Apache-2.0
"""Stored statistics of a tiny run, and what differs from them: `pytest --rankprobe-golden` and `rankprobe check`.

A golden file is JSON text with one line for each call of the run, forward and backward: name, module, line of code, and
of each tensor dtype, shape, Max, Min, Mean and Norm. It is made of a dump of level mix (docs/numerics-in-ci.md).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import tempfile
from typing import Any, Iterator, Mapping, NamedTuple, Optional

from rankprobe._inputs import Refused, show

_VERSION = 1
# Relative. Other kernels of a CPU (no vectors, AVX2, no oneDNN) changed Llama, BERT and T5 of two layers by up to 6.5e-7 in
# float32, 5.2e-3 in float16 and 8.3e-2 in bfloat16. Weights of float64 are drawn in float32 first, by the same kernels.
TOLERANCES = {"float64": 1e-5, "complex128": 1e-5, "float32": 1e-5, "complex64": 1e-5, "float16": 2e-2, "bfloat16": 0.2}
_OTHER_FLOATS = 0.4  # of 8 bits and fewer
_STATISTICS = ("Max", "Min", "Mean", "Norm")
# Variables that would send the records elsewhere.
ELSEWHERE = ("RANKPROBE_COLLECTOR", "RANKPROBE_RUN", "RANKPROBE_SPOOL", "RANKPROBE_STOP")
# A gradient that is zero in mathematics is rounding in numbers: it is not judged below this share of the tolerance, of the
# largest gradient.
_NOISE = 0.1
_PARTS = re.compile(r"(?P<kind>.+)\.(?P<count>\d+)\.(?P<direction>forward|backward)$|"
                    r"(?P<module>Module\..+)\.(?P<phase>forward|backward|parameters_grad)\.(?P<number>\d+)$")


class NumbersDiffer(AssertionError):
    """The numbers of a run are not the stored ones; the text says which call comes first."""


class Call(NamedTuple):
    """One entry of a dump. owner: the module call that it is in, "": none. values: output tensors by their place, each
    [dtype, shape, Max, Min, Mean, Norm]. inputs: norms of the input tensors. names: of what `values` holds."""

    name: str
    owner: str
    code: str
    inputs: list[Any]
    values: dict[str, list[Any]]

    @property
    def is_module(self) -> bool:
        return self.name.startswith("Module.")


class Golden(NamedTuple):
    """step: of the program, where `rankprobe check` made it."""

    made_with: dict[str, str]
    calls: list[Call]
    step: Optional[int] = None


def _rounded(value: Any, dtype: str) -> Any:
    """As many digits as the dtype has: more would only make the file longer."""
    return float(f"{value:.9g}") if isinstance(value, float) and dtype != "float64" else value


def _tensors(value: Any, place: str) -> Iterator[tuple[str, list[Any]]]:
    """The tensors of a recorded value, by place."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from _tensors(item, f"{place}.{i}")
    elif isinstance(value, dict) and "dtype" in value and "shape" in value:
        dtype = str(value["dtype"]).removeprefix("torch.")
        yield place, [dtype, value["shape"], *(_rounded(value.get(name), dtype) for name in _STATISTICS)]
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{place}.{key}")


def _code_line(stack: list[str]) -> str:
    """The innermost line that is not PyTorch's: file below site-packages, line, function and text."""
    frames = [match for match in (re.match(r"File (.*), line (\d+), in (.*?), \n ?(.*)", line, re.DOTALL) for line in stack) if match]
    chosen = next((frame for frame in frames if "/torch/" not in frame[1]), frames[0] if frames else None)
    if chosen is None:
        return ""
    path = re.sub(r".*/(?:site|dist)-packages/", "", chosen[1])
    if os.path.isabs(path):
        path = os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else os.path.basename(path)
    return f"{path}:{chosen[2]} {chosen[3]}: {chosen[4].strip()}"


def _without_root(name: str) -> str:
    """Of a model that was recorded with itself: its modules are below a list of one, "0"."""
    return re.sub(r"^Module\.0\.", "Module.", name)


def _read(path: pathlib.Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def condense(directory: pathlib.Path, rooted: bool = False) -> Golden:
    """Of one rank's directory of a dump of level mix. rooted: its model was in a list of one."""
    data, construct = _read(directory / "dump.json")["data"], _read(directory / "construct.json")
    lines = {name: _code_line(stack) for names, stack in _read(directory / "stack.json").values() for name in names}
    rename = _without_root if rooted else lambda name: name
    calls = []
    for name, entry in data.items():
        outputs = {"output": entry.get("output")} if "parameters_grad" not in name else entry
        inputs = {key: value for key, value in entry.items() if key not in outputs}
        values = dict(itertools.chain.from_iterable(_tensors(value, key) for key, value in outputs.items()))
        norms = [tensor[-1] for key, value in inputs.items() for _, tensor in _tensors(value, key)]
        owner = construct.get(name)
        calls.append(Call(rename(name), rename(owner) if isinstance(owner, str) else "", lines.get(name, ""), norms, values))
    return Golden(_made_with(directory), calls)


def _made_with(directory: pathlib.Path) -> dict[str, str]:
    try:
        card = _read(directory / "run_card.json")
    except OSError:
        return {}
    found = {**card.get("packages", {}), **card.get("versions", {})}
    return {name: str(found[name]) for name in ("python", "torch", "transformers", "numpy", "system") if name in found}


def write(path: pathlib.Path, golden: Golden) -> None:
    """As text that a version control compares line by line."""
    lines = ",\n  ".join(json.dumps([*call], separators=(",", ":"), ensure_ascii=False) for call in golden.calls)
    step = {} if golden.step is None else {"step": golden.step}
    head = json.dumps({"rankprobe_golden": _VERSION, "made_with": golden.made_with, **step}, ensure_ascii=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(f'{head[:-1]}, "calls": [\n  {lines}\n]}}\n', encoding="utf-8")
    temporary.replace(path)


def read(path: pathlib.Path) -> Golden:
    """Raises Refused in one line where it is none, FileNotFoundError where there is no file."""
    try:
        data = _read(path)
        if data["rankprobe_golden"] != _VERSION:
            raise Refused(f"{path} is of version {data['rankprobe_golden']}, and this rankprobe reads {_VERSION}: make it again")
        return Golden(dict(data["made_with"]), [Call(*call) for call in data["calls"]], data.get("step"))
    except (ValueError, KeyError, TypeError) as fault:
        raise Refused(f"{path} is not a golden file: {' '.join(str(fault).split())}") from None


# --- the comparison


class Difference(NamedTuple):
    """place: of the tensor. rows: (statistic, stored, now, relative difference, allowed); empty where dtype or shape differ."""

    place: str
    what: str
    rows: list[tuple[str, Any, Any, float, float]]


class Judged(NamedTuple):
    old: Call
    new: Call
    differences: list[Difference]


class Result(NamedTuple):
    """compared: calls whose values were. wrong: those that differ, in the order of the run. only_old, only_new: calls
    without a partner; rewritten: modules whose own calls are others than stored, which are judged by their outputs."""

    compared: int
    wrong: list[Judged]
    only_old: list[Call]
    only_new: list[Call]
    rewritten: list[str]


def _number(value: Any) -> float:
    """Of a statistic; a NaN stands for the one that is not there."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def _allowed(dtype: str, tolerances: Mapping[str, float]) -> float:
    return tolerances.get(dtype, _OTHER_FLOATS if "float" in dtype else 0.0)


def _tensor_differences(place: str, old: list[Any], new: list[Any], allowed: float, floor: float) -> Optional[Difference]:
    (old_dtype, old_shape, *stored), (dtype, shape, *now) = old, new
    if old_dtype != dtype:
        return Difference(place, f"dtype was {old_dtype}, is {dtype}", [])
    if old_shape != shape:
        return Difference(place, f"shape was {old_shape}, is {shape}", [])
    size = max((abs(_number(value)) for value in stored[:3] if math.isfinite(_number(value))), default=0.0)
    rows = []
    for name, before, after in zip(_STATISTICS, map(_number, stored), map(_number, now)):
        if before == after or (math.isnan(before) and math.isnan(after)):
            continue
        scale = abs(before) if name == "Norm" else size
        apart = abs(after - before)
        relative = apart / scale if scale > 0 and math.isfinite(apart) else math.inf
        if not (relative <= allowed or apart <= _NOISE * allowed * floor):
            rows.append((name, before, after, relative, allowed))
    return Difference(place, f"{dtype} {shape}", rows) if rows else None


def _largest_gradient(calls: list[Call]) -> float:
    values = (abs(_number(value)) for call in calls if not call.name.endswith(".forward") and ".forward." not in call.name
              for tensor in call.values.values() for value in tensor[2:4])
    return max((value for value in values if math.isfinite(value)), default=0.0)


def _place(name: str) -> str:
    """The name of a module's call without its class: another class in its place is its partner."""
    match = _PARTS.match(name)
    if match is None or match["module"] is None:
        return name
    path, _, _ = match["module"].rpartition(".")
    return f"{path}.{match['phase']}.{match['number']}"


def _keys(calls: list[Call]) -> tuple[dict[tuple[str, ...], Call], dict[str, list[str]]]:
    """Calls by what their partner has too: a module by its path, another call by its module and its turn among the equal
    ones in it. And, by module, the kinds of its own calls in their order."""
    found: dict[tuple[str, ...], Call] = {}
    kinds: dict[str, list[str]] = {}
    turns: dict[tuple[str, str, str], int] = {}
    for call in calls:
        match = _PARTS.match(call.name)
        if match is None or match["module"] is not None:
            found[(_place(call.name),)] = call
            continue
        owner = _place(call.owner)
        key = (owner, match["kind"], match["direction"])
        turns[key] = turns.get(key, -1) + 1
        found[key + (str(turns[key]),)] = call
        kinds.setdefault(owner, []).append(f"{match['kind']}.{match['direction']}")
    return found, kinds


def _forward_owners(calls: list[Call]) -> dict[str, str]:
    """The module call that the forward of a call is in, by the name of its backward: that runs outside of it at times."""
    return {call.name.removesuffix(".forward") + ".backward": _place(call.owner) for call in calls if call.name.endswith(".forward")}


def _one_sided(old: Call, new: Call) -> list[Difference]:
    """Tensors without a partner. A module that returns more or less than stored, as a cache, has the numbers of the rest."""
    if new.is_module and old.values.keys() & new.values.keys():
        return []
    return [*(Difference(place, "no longer exists", []) for place in old.values if place not in new.values),
            *(Difference(place, "was not there", []) for place in new.values if place not in old.values)]


def compare(old: Golden, new: Golden, tolerances: Optional[Mapping[str, float]] = None) -> Result:
    """tolerances: by dtype, in place of TOLERANCES."""
    tolerances = {**TOLERANCES, **(tolerances or {})}
    (before, old_kinds), (after, new_kinds) = _keys(old.calls), _keys(new.calls)
    rewritten = sorted(owner for owner in {*old_kinds, *new_kinds} if old_kinds.get(owner) != new_kinds.get(owner))
    forward_owners = _forward_owners(new.calls)
    floor = _largest_gradient(old.calls)
    # What is computed in float32 of values of 16 bits has their rounding.
    coarsest = max((_allowed(tensor[0], tolerances) for call in old.calls for tensor in call.values.values()), default=0.0)
    compared, wrong = 0, []
    for key, call in after.items():
        partner = before.get(key)
        if partner is None or not call.is_module and (key[0] in rewritten or forward_owners.get(call.name) in rewritten):
            continue
        forward = call.name.endswith(".forward") or ".forward." in call.name
        differences = _one_sided(partner, call)
        for place, tensor in call.values.items():
            if place in partner.values:
                allowed = max(coarsest, _allowed(tensor[0], tolerances)) if _allowed(tensor[0], tolerances) else 0.0
                found = _tensor_differences(place, partner.values[place], tensor, allowed, 0.0 if forward else floor)
                differences += [found] if found is not None else []
        compared += bool(call.values)
        if differences:
            wrong.append(Judged(partner, call, differences))
    wrong_modules = {_place(judged.new.name) for judged in wrong if judged.new.is_module}

    def is_rewritten(judged: Judged) -> bool:
        """A call with other shapes or dtypes, in a module whose results are the stored ones."""
        owner = forward_owners.get(judged.new.name, _place(judged.new.owner))
        return ((owner,) in before and (owner,) in after and not judged.new.is_module
                and not any(difference.rows for difference in judged.differences)
                and not wrong_modules & {owner, owner.replace(".forward.", ".backward.")})

    wrong = [judged for judged in wrong if not is_rewritten(judged)]
    return Result(compared, wrong, [call for key, call in before.items() if key not in after],
                  [call for key, call in after.items() if key not in before], rewritten)


def _inputs_agree(judged: Judged, tolerances: Mapping[str, float]) -> Optional[bool]:
    """By the norms of the inputs; None: it has other ones."""
    old, new = judged.old.inputs, judged.new.inputs
    if len(old) != len(new):
        return None
    allowed = max((_allowed(tensor[0], tolerances) for tensor in judged.new.values.values()), default=0.0)
    return all(_number(a) == _number(b) or abs(_number(a) - _number(b)) <= allowed * abs(_number(a)) or
               (math.isnan(_number(a)) and math.isnan(_number(b))) for a, b in zip(old, new))


def _layer(call: Call) -> str:
    name = call.name if call.is_module else call.owner
    match = _PARTS.match(name)
    return match["module"].removeprefix("Module.").rpartition(".")[0] if match and match["module"] else ""


def _code(result: Result, judged: Judged) -> str:
    """Its line; of a module whose calls are others now, that of the first of them that has no partner."""
    call = judged.new
    inside = [one.code for one in result.only_new if one.code and _place(one.owner) == _place(call.name)]
    forward = re.sub(r"\.(?:backward|parameters_grad)\.", ".forward.", call.name)
    of_forward = [one.code for one in (call, judged.old) if one.code]
    return call.code or (inside[0] if inside else "") or (of_forward[0] if of_forward else f"(the backward of {forward})")


def _versions(made_with: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in made_with.items()) or "unknown versions"


def report(result: Result, old: Golden, new: Golden, name: str, tolerances: Optional[Mapping[str, float]] = None) -> str:
    """What differs, for a person; "": nothing does."""
    if not result.compared:
        return f"{name}: no call of this run is stored there: it is the file of another model, or nothing was called"
    if not result.wrong:
        return ""
    first = result.wrong[0]
    agree = _inputs_agree(first, {**TOLERANCES, **(tolerances or {})})
    lines = [f"{name}: {len(result.wrong)} of {result.compared} calls have other numbers than stored",
             f"first: {first.new.name}" + (f" (stored: {first.old.name})" if first.old.name != first.new.name else ""),
             f"  layer {_layer(first.new) or '(the model)'}",
             f"  code  {_code(result, first)}"]
    for difference in first.differences[:4]:
        lines.append(f"  {difference.place}: {difference.what}")
        lines += [f"    {row[0]:<5}{'stored':>8} {row[1]:<15.8g} now {row[2]:<15.8g} relative {row[3]:<8.1e} allowed {row[4]:.0e}"
                  for row in difference.rows]
    if agree is False:
        lines.append("  its inputs have other norms too: other weights, seed or batch, or a call that is not recorded")
    elif agree:
        lines.append("  its inputs have the stored norms")
    if result.rewritten:
        lines.append(f"  other calls than stored in: {', '.join(one or '(outside of modules)' for one in result.rewritten[:3])}")
    lines.append(f"stored with {_versions(old.made_with)}; now {_versions(new.made_with)}")
    return "\n".join(show(line) for line in lines)


def _json_number(value: float) -> Any:
    """As every command of rankprobe writes it: JSON has no number for nan, inf and -inf."""
    return value if math.isfinite(value) else str(value)


def as_json(result: Result, old: Golden, new: Golden, tolerances: Optional[Mapping[str, float]] = None) -> dict[str, Any]:
    """What `report` says, for a program: every differing call, in the order of the run (schema: `rankprobe schema check`)."""
    tolerances = {**TOLERANCES, **(tolerances or {})}
    return {
        "compared": result.compared, "stored_with": old.made_with, "made_with": new.made_with, "rewritten": result.rewritten,
        "differences": [{
            "call": judged.new.name, "stored_call": judged.old.name, "layer": _layer(judged.new), "code": _code(result, judged),
            "inputs_agree": _inputs_agree(judged, tolerances),
            "tensors": [{"place": one.place, "what": one.what, "statistics": [
                dict(zip(("name", "stored", "now", "relative", "allowed"), (row[0], *map(_json_number, row[1:])))) for row in one.rows]}
                for one in judged.differences]} for judged in result.wrong]}


# --- recording a block


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Without ELSEWHERE."""
    taken = {name: os.environ.pop(name) for name in ELSEWHERE if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(taken)


@contextlib.contextmanager
def recorded(model: Any) -> Iterator[list[Golden]]:
    """What the block calls, with `model` (a torch.nn.Module) and all below it: one Golden in the list when it has ended."""
    import torch

    from rankprobe.pytorch.debugger import PrecisionDebugger

    if PrecisionDebugger._instance is not None:
        raise RuntimeError("a PrecisionDebugger records this process already, and a process has one")
    out: list[Golden] = []
    directory = pathlib.Path(tempfile.mkdtemp(prefix="rankprobe-golden-"))
    try:
        config = directory / "config.json"
        config.write_text(json.dumps({"task": "statistics", "dump_path": str(directory / "dump"), "rank": [], "step": [],
                                      "level": "mix", "statistics": {"data_mode": ["all"], "summary_mode": "statistics"}}))
        with _environment():
            debugger = PrecisionDebugger(config_path=str(config), on_collector_missing="fail")
            try:
                debugger._session._place_told = True  # a directory that is removed at once
                # In a list of one, so that the model itself is recorded.
                debugger.start(torch.nn.ModuleList([model]))
                yield out
                debugger.stop()
                debugger.step()
                debugger.wait_exported()
            finally:
                debugger.close()
        found = sorted((directory / "dump").glob("step0/*/dump.json"))
        if not found:
            raise RuntimeError("nothing was recorded: the block called no operator of PyTorch")
        out.append(condense(found[0].parent, rooted=True))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def golden(path: pathlib.Path, model: Any, update: bool = False, tolerances: Optional[Mapping[str, float]] = None) -> Iterator[None]:
    """Compares what the block calls with the file, or writes it. Raises NumbersDiffer."""
    __tracebackhide__ = True
    with recorded(model) as runs:
        yield
    if update:
        return write(path, runs[0])
    try:
        stored = read(path)
    except FileNotFoundError:
        raise NumbersDiffer(f"{path} is not there; an update makes it") from None
    text = report(compare(stored, runs[0], tolerances), stored, runs[0], str(path), tolerances)
    if text:
        raise NumbersDiffer(text)


__all__ = ["Call", "Golden", "NumbersDiffer", "Result", "TOLERANCES", "as_json", "compare", "condense", "golden", "read", "recorded", "report",
           "write"]
