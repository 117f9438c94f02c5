# SPDX-License-Identifier: Apache-2.0
"""Classification of a wrong result as a transient fault, a device fault or a software fault: acc_check --repeat K.

Runs each recorded call K times on its recorded inputs (task tensor) and searches the results for the recorded outputs. `once` on
the recording machine and on a second machine is a transient fault. `always` on the recording machine and `once` on the second is a
persistent fault of the first device. `always` on both is a fault of the software.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import torch

from rankprobe import acc_check
from rankprobe._inputs import Refused, show

PASS, ONCE, ALWAYS, VARIES, SKIP = "pass", "once", "always", "varies", "SKIP"
_MEANING = {
    ONCE: "{count} runs here agree and none gives the recorded result",
    ALWAYS: "{count} runs here give the recorded result, and a run in float64 gives another",
    VARIES: "{count} runs here on the same inputs do not agree with each other",
}
_WORST = (VARIES, ONCE, ALWAYS, PASS)


@dataclasses.dataclass
class Finding:
    """Result for one call. verdict: pass, once, always, varies or SKIP; text: the reason."""

    call: str
    verdict: str
    text: str = ""


class _Saved(acc_check.Inputs):
    """Makes argument values from saved tensors only; draws none."""

    def draw(self, dtype: torch.dtype, shape: list[int], low: Any, high: Any) -> torch.Tensor:
        raise acc_check.Skip("a value of it was not saved")


def _bits(value: torch.Tensor) -> torch.Tensor:
    value = torch.view_as_real(value) if value.is_complex() else value
    return value.detach().contiguous().reshape(-1).view(torch.uint8)


def _alike(op: str, value: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two results are equal, or as close as those of two kernels may be."""
    if value.shape != other.shape or value.dtype != other.dtype:
        return False
    if torch.equal(_bits(value), _bits(other)):
        return True
    if value.dtype in acc_check.BOUNDS or not (value.is_floating_point() or value.is_complex()):
        return bool(acc_check.measure(op, value, other)["Status"] == "pass")
    return bool(torch.allclose(value, other, rtol=1e-10, equal_nan=True))


def _recorded(record: dict[str, Any], data_dir: str, force: bool) -> list[torch.Tensor]:
    """Loads the recorded outputs. Raises Skip if one of them was not saved."""
    def every(value: Any) -> Any:
        if isinstance(value, dict) and value.get("type") == "torch.Tensor":
            yield value
        elif isinstance(value, (list, dict)):
            for item in value.values() if isinstance(value, dict) else value:
                yield from every(item)

    return [_saved(item, data_dir, force) for item in every(record.get("output"))]


def _saved(record: Any, data_dir: str, force: bool) -> torch.Tensor:
    if not isinstance(record.get("data_name"), str):
        raise acc_check.Skip("a value of it was not saved")
    return _Saved(data_dir, 0, force).tensor(record).detach()


def repeat(name: str, record: dict[str, Any], data_dir: str, count: int, force: bool) -> Finding:
    """Runs one forward entry of a dump `count` times and classifies its result. Raises Refused."""
    call = name.removesuffix(".forward")
    try:
        match = acc_check.NAME.match(name)
        if match is None:
            raise acc_check.Skip("not a call of torch, torch.Tensor or torch.nn.functional")
        op = match.group(2)
        if acc_check.RANDOM.search(op) or op in acc_check.UNSUPPORTED:
            raise acc_check.Skip(f"{op} has no reproducible result to check")
        function = acc_check.resolve(match.group(1), op)
        inputs = _Saved(data_dir, 0, force)
        args = inputs.make(record.get("input_args"))
        kwargs = {key: inputs.make(value) for key, value in (record.get("input_kwargs") or {}).items()}
        acc_check.check_texts(op, [args, kwargs])
        recorded = _recorded(record, data_dir, force)
        runs = []
        with torch.no_grad():
            for _ in range(count):
                same = acc_check.convert_same([args, kwargs])
                runs.append(list(acc_check.tensors(function(*same[0], **same[1]))))
            golden = list(acc_check.tensors(function(*acc_check.convert(args, torch.float64), **acc_check.convert(kwargs, torch.float64))))
        if not runs[0] or len(runs[0]) != len(recorded):
            raise acc_check.Skip("it returns other tensors than were recorded")
        found = [_verdict(op, [run[index] for run in runs], there, golden[index]) for index, there in enumerate(recorded)]
        worst = min(found, key=_WORST.index)
        return Finding(call, worst, _MEANING.get(worst, "").format(count=count))
    except Refused:
        raise
    except acc_check.Skip as reason:
        return Finding(call, SKIP, str(reason))
    except Exception as fault:  # noqa: BLE001 - of the operator: a wrong argument, no kernel for the dtype
        return Finding(call, SKIP, f"{type(fault).__name__}: {' '.join(str(fault).split())[:200]}")


def _verdict(op: str, runs: list[torch.Tensor], recorded: torch.Tensor, golden: torch.Tensor) -> str:
    if any(not torch.equal(_bits(run), _bits(runs[0])) for run in runs[1:]):
        return VARIES
    if not _alike(op, runs[0], recorded):
        return ONCE
    if runs[0].dtype in acc_check.BOUNDS and acc_check.measure(op, runs[0], golden)["Status"] == "error":
        return ALWAYS
    return PASS


def run(info: dict[str, Any], data_dir: str | None, count: int, as_json: bool, force: bool) -> int:
    """Runs all calls of a dump and prints the findings. Returns the exit code: 1 if there are any. Raises Refused."""
    if count < 2:
        raise Refused("--repeat: expected a number of runs, 2 or more")
    if data_dir is None:
        raise Refused(f"--repeat: needs the recorded inputs and outputs, a dump of task tensor; this one has task {info.get('task')}")
    found = [repeat(name, record, data_dir, count, force) for name, record in info["data"].items()
             if name.endswith(".forward") and isinstance(record, dict)]
    counts = {verdict: sum(one.verdict == verdict for one in found) for verdict in (PASS, ONCE, ALWAYS, VARIES, SKIP)}
    wrong = [one for one in found if one.verdict not in (PASS, SKIP)]
    if as_json:
        print(json.dumps({**counts, "runs": count, "calls": [dataclasses.asdict(one) for one in found]}))
    else:
        for one in wrong:
            print(f"{one.verdict}  {show(one.call)}: {one.text}")
        print(f"{count} runs of {len(found)} calls: " + ", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    return 1 if wrong else 0
