# SPDX-License-Identifier: Apache-2.0
"""Golden files: stored statistics of a small run and their comparison, for `pytest --rankprobe-golden` and `rankprobe check`.

A golden file is JSON text with one line for each call of the run, forward and backward: name, module, line of code, and
dtype, shape, Max, Min, Mean and Norm of each tensor. It is made from a dump of level mix (docs/numerics-in-ci.md).
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
# Relative tolerances. Other CPU kernels (no vectors, AVX2, no oneDNN) changed Llama, BERT and T5 of two layers by up to 6.5e-7
# in float32, 5.2e-3 in float16 and 8.3e-2 in bfloat16. float64 has the value of float32, because float64 weights are drawn in
# float32 first, by the same kernels.
TOLERANCES = {"float64": 1e-5, "complex128": 1e-5, "float32": 1e-5, "complex64": 1e-5, "float16": 2e-2, "bfloat16": 0.2}
_OTHER_FLOATS = 0.4  # for floats of 8 bits and fewer
_STATISTICS = ("Max", "Min", "Mean", "Norm")
# Environment variables that would send the records to another place.
ELSEWHERE = ("RANKPROBE_COLLECTOR", "RANKPROBE_RUN", "RANKPROBE_SPOOL", "RANKPROBE_STOP")
# A gradient that is mathematically zero consists of rounding errors. Gradient differences below this share of the tolerance,
# relative to the largest gradient, are ignored.
_NOISE = 0.1
_PARTS = re.compile(r"(?P<kind>.+)\.(?P<count>\d+)\.(?P<direction>forward|backward)$|"
                    r"(?P<module>Module\..+)\.(?P<phase>forward|backward|parameters_grad)\.(?P<number>\d+)$")


class NumbersDiffer(AssertionError):
    """The numbers of a run differ from the stored ones; the text names the first call that differs."""


class Call(NamedTuple):
    """One entry of a dump. owner: the enclosing module call, "" if there is none. code: the line of code that made the call.
    inputs: norms of the input tensors. values: output tensors by place, each [dtype, shape, Max, Min, Mean, Norm]."""

    name: str
    owner: str
    code: str
    inputs: list[Any]
    values: dict[str, list[Any]]

    @property
    def is_module(self) -> bool:
        return self.name.startswith("Module.")


class Golden(NamedTuple):
    """Content of a golden file. step: the step of the program if `rankprobe check` made the file, else None."""

    made_with: dict[str, str]
    calls: list[Call]
    step: Optional[int] = None


def _rounded(value: Any, dtype: str) -> Any:
    """Rounds to the precision of the dtype; more digits would only make the file longer."""
    return float(f"{value:.9g}") if isinstance(value, float) and dtype != "float64" else value


def _tensors(value: Any, place: str) -> Iterator[tuple[str, list[Any]]]:
    """Yields (place, [dtype, shape, statistics]) of the tensors in a recorded value."""
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
    """Returns the innermost frame outside of PyTorch: file below site-packages, line, function and text."""
    frames = [match for match in (re.match(r"File (.*), line (\d+), in (.*?), \n ?(.*)", line, re.DOTALL) for line in stack) if match]
    chosen = next((frame for frame in frames if "/torch/" not in frame[1]), frames[0] if frames else None)
    if chosen is None:
        return ""
    path = re.sub(r".*/(?:site|dist)-packages/", "", chosen[1])
    if os.path.isabs(path):
        path = os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else os.path.basename(path)
    return f"{path}:{chosen[2]} {chosen[3]}: {chosen[4].strip()}"


def _without_root(name: str) -> str:
    """Removes the path component of the one-element list in which recorded() wraps the model."""
    return re.sub(r"^Module\.0\.", "Module.", name)


def _read(path: pathlib.Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def condense(directory: pathlib.Path, rooted: bool = False) -> Golden:
    """Makes a Golden from one rank's directory of a dump of level mix. rooted: the model was wrapped in a list of one element.
    Raises OSError, KeyError or ValueError for a directory that is not such a dump."""
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
    """Writes the file with one line for each call, so that version control can compare it by lines. Replaces an existing file
    atomically."""
    lines = ",\n  ".join(json.dumps([*call], separators=(",", ":"), ensure_ascii=False) for call in golden.calls)
    step = {} if golden.step is None else {"step": golden.step}
    head = json.dumps({"rankprobe_golden": _VERSION, "made_with": golden.made_with, **step}, ensure_ascii=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(f'{head[:-1]}, "calls": [\n  {lines}\n]}}\n', encoding="utf-8")
    temporary.replace(path)


def read(path: pathlib.Path) -> Golden:
    """Reads a golden file. Raises Refused with one line if it is not one, FileNotFoundError if there is no file."""
    try:
        data = _read(path)
        if data["rankprobe_golden"] != _VERSION:
            raise Refused(f"{path} is of version {data['rankprobe_golden']}, and this rankprobe reads {_VERSION}: make it again")
        return Golden(dict(data["made_with"]), [Call(*call) for call in data["calls"]], data.get("step"))
    except (ValueError, KeyError, TypeError) as fault:
        raise Refused(f"{path} is not a golden file: {' '.join(str(fault).split())}") from None


# --- the comparison


class Difference(NamedTuple):
    """A tensor that differs. rows: (statistic, stored, now, relative difference, allowed); empty if dtype or shape differ."""

    place: str
    what: str
    rows: list[tuple[str, Any, Any, float, float]]


class Judged(NamedTuple):
    old: Call
    new: Call
    differences: list[Difference]


class Result(NamedTuple):
    """Result of a comparison. compared: number of calls whose values were compared. wrong: calls that differ, in the order of the
    run. only_old, only_new: calls without a partner. rewritten: modules whose own calls changed; these are judged by their outputs."""

    compared: int
    wrong: list[Judged]
    only_old: list[Call]
    only_new: list[Call]
    rewritten: list[str]


def _number(value: Any) -> float:
    """Returns a statistic as float; NaN if it is absent."""
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
    """Returns the name of a module's call without its class, so that a module of another class at the same path is its partner."""
    match = _PARTS.match(name)
    if match is None or match["module"] is None:
        return name
    path, _, _ = match["module"].rpartition(".")
    return f"{path}.{match['phase']}.{match['number']}"


def _keys(calls: list[Call]) -> tuple[dict[tuple[str, ...], Call], dict[str, list[str]]]:
    """Returns the calls by the key that a partner has too: for a module its path, for another call its module, kind and its index
    among the calls of that kind in the module. Returns also the kinds of each module's own calls, in their order."""
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
    """Maps the name of a call's backward to the module call that contains its forward, since the backward may run outside of it."""
    return {call.name.removesuffix(".forward") + ".backward": _place(call.owner) for call in calls if call.name.endswith(".forward")}


def _one_sided(old: Call, new: Call) -> list[Difference]:
    """Returns the tensors without a partner. A module that returns more or fewer tensors than stored, such as a cache, is judged by
    the tensors that both have."""
    if new.is_module and old.values.keys() & new.values.keys():
        return []
    return [*(Difference(place, "no longer exists", []) for place in old.values if place not in new.values),
            *(Difference(place, "was not there", []) for place in new.values if place not in old.values)]


def compare(old: Golden, new: Golden, tolerances: Optional[Mapping[str, float]] = None) -> Result:
    """Compares a run with the stored one. tolerances: relative, by dtype; override those of TOLERANCES."""
    tolerances = {**TOLERANCES, **(tolerances or {})}
    (before, old_kinds), (after, new_kinds) = _keys(old.calls), _keys(new.calls)
    rewritten = sorted(owner for owner in {*old_kinds, *new_kinds} if old_kinds.get(owner) != new_kinds.get(owner))
    forward_owners = _forward_owners(new.calls)
    floor = _largest_gradient(old.calls)
    # Values computed in float32 from 16-bit values carry the rounding of 16 bits, so the coarsest tolerance applies to all floats.
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
        """Returns whether only shapes or dtypes of the call differ, in a module whose results match the stored ones."""
        owner = forward_owners.get(judged.new.name, _place(judged.new.owner))
        return ((owner,) in before and (owner,) in after and not judged.new.is_module
                and not any(difference.rows for difference in judged.differences)
                and not wrong_modules & {owner, owner.replace(".forward.", ".backward.")})

    wrong = [judged for judged in wrong if not is_rewritten(judged)]
    return Result(compared, wrong, [call for key, call in before.items() if key not in after],
                  [call for key, call in after.items() if key not in before], rewritten)


def _inputs_agree(judged: Judged, tolerances: Mapping[str, float]) -> Optional[bool]:
    """Returns whether the norms of the inputs agree; None if the number of inputs differs."""
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
    """Returns the line of code of a call. For a module whose own calls changed, this is the line of the first call without a partner."""
    call = judged.new
    inside = [one.code for one in result.only_new if one.code and _place(one.owner) == _place(call.name)]
    forward = re.sub(r"\.(?:backward|parameters_grad)\.", ".forward.", call.name)
    of_forward = [one.code for one in (call, judged.old) if one.code]
    return call.code or (inside[0] if inside else "") or (of_forward[0] if of_forward else f"(the backward of {forward})")


def _versions(made_with: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in made_with.items()) or "unknown versions"


def report(result: Result, old: Golden, new: Golden, name: str, tolerances: Optional[Mapping[str, float]] = None) -> str:
    """Returns the differences as text for the user; "" if there are none."""
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
    """Returns NaN and infinities as strings, as every command of rankprobe writes them, because JSON has no such numbers."""
    return value if math.isfinite(value) else str(value)


def as_json(result: Result, old: Golden, new: Golden, tolerances: Optional[Mapping[str, float]] = None) -> dict[str, Any]:
    """Returns every call that differs, in the order of the run, as a JSON object (schema: `rankprobe schema check`)."""
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
    """Removes the variables of ELSEWHERE from the environment for the block."""
    taken = {name: os.environ.pop(name) for name in ELSEWHERE if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(taken)


@contextlib.contextmanager
def recorded(model: Any) -> Iterator[list[Golden]]:
    """Records the calls of the block and of `model` (a torch.nn.Module) with its submodules. Yields a list that holds one Golden when
    the block has ended. Raises RuntimeError if a PrecisionDebugger exists already or nothing was recorded."""
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
                debugger._session._place_told = True  # Suppresses the message about a directory that is removed at once.
                # The list makes the model a submodule, so that its own call is recorded.
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
    """Compares the calls of the block with the file, or writes the file if `update`. Raises NumbersDiffer if they differ or there is
    no file, Refused if it is not a golden file."""
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
