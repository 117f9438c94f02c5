# SPDX-License-Identifier: Apache-2.0
"""Recorded module calls of one step and rank of a reference: a dump of task tensor, level L0 or mix."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Optional

from rankprobe._inputs import Refused, open_input, read_dump, show

if TYPE_CHECKING:  # the command reads a reference without PyTorch
    import torch

_NAME = re.compile(r"^Module\.(.+)\.([^.]+)\.(forward|backward|parameters_grad)(?:\.(\d{1,18}))?$")
_PLACE = re.compile(r"^(?:rank|proc)\d+$")


class IsolationError(ValueError):
    """Nothing can be judged; the text is one line for the user."""


class Unreadable(Exception):
    """A tensor cannot be loaded; the text says why."""


class Call(NamedTuple):
    """One call of a module, with its records by direction; backward is None if none was recorded."""

    name: str
    forward: dict[str, Any]
    backward: Optional[dict[str, Any]]


def is_tensor(record: Any) -> bool:
    return isinstance(record, dict) and isinstance(record.get("dtype"), str) and isinstance(record.get("shape"), list)


def leaves(record: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields (path, record) of each leaf in nested lists and dicts, tensors and other values alike."""
    if isinstance(record, list):
        for index, item in enumerate(record):
            yield from leaves(item, f"{path}.{index}")
    elif isinstance(record, dict) and not is_tensor(record) and "type" not in record:
        for key, item in record.items():
            yield from leaves(item, f"{path}.{key}")
    else:
        yield path, record


def _directories(path: str, kind: str) -> list[str]:
    pattern = re.compile(r"^step\d+$") if kind == "step" else _PLACE
    try:
        found = [name for name in os.listdir(path) if pattern.match(name) and os.path.isdir(os.path.join(path, name))]
    except OSError as error:
        raise IsolationError(f"{show(path)}: {error.strerror}") from None
    return sorted(found, key=lambda name: int(re.sub(r"\D", "", name)))


def find_rank(path: str, step: Optional[int], rank: Optional[int]) -> str:
    """Returns the directory of one rank. `path`: a dump, one of its steps, or one of their ranks. `step`: required for a dump with
    several steps. `rank`: selects one of several; default the rank of this process (RANK). Raises IsolationError."""
    if path.startswith("run:"):
        run = show(path[4:])
        raise IsolationError(f"{show(path)}: isolate reads directories; rankprobe export --run {run.split('@')[0]} -o DIR writes one")
    if os.path.isfile(path) and os.path.basename(path) == "dump.json":
        path = os.path.dirname(path) or "."
    if not os.path.isdir(path):
        raise IsolationError(f"{show(path)}: there is no such directory")
    if os.path.isfile(os.path.join(path, "dump.json")):
        return path
    steps = _directories(path, "step")
    if steps:
        wanted = f"step{step}" if step is not None else steps[0] if len(steps) == 1 else None
        if wanted not in steps:
            missing = "has several steps, name one" if wanted is None else f"has no {wanted}"
            raise IsolationError(f"{show(path)}: {missing}: --step N ({', '.join(steps[:8])})")
        path = os.path.join(path, wanted)
    ranks = _directories(path, "rank")
    if not ranks:
        raise IsolationError(f"{show(path)}: holds no dump.json and no directories rank0, proc1, .. that have one")
    own = f"rank{rank if rank is not None else os.environ.get('RANK', '0')}"
    if own in ranks:
        return os.path.join(path, own)
    if len(ranks) == 1 and rank is None:
        return os.path.join(path, ranks[0])
    raise IsolationError(f"{show(path)}: has no {own}; give one of its directories ({', '.join(ranks[:8])}), or --rank R")


def _read(path: str, force: bool) -> dict[str, Any]:
    try:
        return read_dump(path, force)
    except Refused as reason:
        raise IsolationError(show(reason)) from None


def _given(call: Call) -> str:
    """Returns a text that is equal for calls with the same inputs: their records without file names."""
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items() if key not in ("data_name", "requires_grad")}
        return [plain(item) for item in value] if isinstance(value, list) else value

    return json.dumps(plain([call.forward.get("input_args"), call.forward.get("input_kwargs")]), default=str)


def _without_recomputations(calls: list[Call]) -> list[Call]:
    """Merges recomputations into their calls: activation checkpointing computes a module a second time on the same inputs, and only
    one of the two calls has the backward."""
    if len(calls) < 2 or len({call.backward is None for call in calls}) < 2:
        return calls
    out: list[Call] = []
    places: dict[str, list[int]] = {}
    for call in calls:
        same = places.setdefault(_given(call), [])
        partner = next((i for i in same if (out[i].backward is None) != (call.backward is None)), None)
        if partner is None:
            same.append(len(out))
            out.append(call)
        else:
            same.remove(partner)
            if call.backward is not None:
                out[partner] = call._replace(name=out[partner].name)
    return out


class Reference:
    """The module calls of one dump. Tensors are read on demand. Raises IsolationError if the dump cannot serve as a reference."""

    def __init__(self, directory: str, force: bool = False) -> None:
        self.directory, self._force = directory, force
        info = _read(os.path.join(directory, "dump.json"), force)
        task, framework = info.get("task"), info.get("framework", "pytorch")
        if framework != "pytorch":
            raise IsolationError(f"{show(directory)}: is a dump of {show(framework)}; isolate reads those of PyTorch")
        if task != "tensor":
            raise IsolationError(f"{show(directory)}: has task {show(task)}, which keeps no tensors (statistics or checksums alone): "
                                 'record the reference with "task": "tensor" and level L0 or mix')
        self.calls: dict[str, dict[int, Call]] = {}
        # Module path -> number of the pass -> gradients by parameter name.
        self.parameter_gradients: dict[str, dict[int, dict[str, Any]]] = {}
        backwards: dict[tuple[str, int], dict[str, Any]] = {}
        for name, record in info["data"].items():
            match = _NAME.match(name)
            if match is None or not isinstance(record, dict):
                continue
            path, direction, number = match[1], match[3], int(match[4] or 0)
            if direction == "parameters_grad":
                self.parameter_gradients.setdefault(path, {})[number] = record
            elif direction == "backward":
                backwards[path, number] = record
            else:
                self.calls.setdefault(path, {})[number] = Call(name, record, None)
        for (path, number), record in backwards.items():
            if number in self.calls.get(path, {}):
                self.calls[path][number] = self.calls[path][number]._replace(backward=record)
        for path, calls in self.calls.items():
            self.calls[path] = dict(enumerate(_without_recomputations([calls[number] for number in sorted(calls)])))
        if not self.calls:
            raise IsolationError(f"{show(directory)}: holds no call of a module (level {show(info.get('level'))}, {len(info['data'])} "
                                 "entries): record the reference with level L0 or mix")

    def load(self, record: dict[str, Any]) -> torch.Tensor:
        """Loads a recorded tensor to the CPU. Raises Unreadable if it is missing or does not match the record."""
        import torch

        name = record.get("data_name")
        if not isinstance(name, str) or "/" in name or not name.endswith(".pt"):
            raise Unreadable("its values were not saved")
        path = os.path.join(self.directory, "dump_tensor_data", name)
        try:
            with open_input(path, self._force, "rb") as file:
                value = torch.load(file, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise Unreadable(f"{name} is missing") from None
        except Refused as reason:
            raise Unreadable(show(reason)) from None
        except Exception as fault:  # noqa: BLE001 - a damaged archive may raise any type
            raise Unreadable(f"{name} cannot be read ({type(fault).__name__}: {' '.join(str(fault).split())[:120]})") from None
        if not isinstance(value, torch.Tensor) or list(value.shape) != record["shape"] or not _is_plain(value, record["dtype"]):
            raise Unreadable(f"{name} is not the tensor that dump.json describes")
        return value.detach()


def _is_plain(value: torch.Tensor, dtype: str) -> bool:
    """Returns whether it is a dense tensor in host memory that is complex if and only if the record says so."""
    return (value.device.type == "cpu" and str(value.layout) == "torch.strided" and not value.is_quantized
            and value.is_complex() == ("complex" in dtype))


def differentiable(record: Any, path: str) -> list[str]:
    """Returns the paths of the recorded tensors that required a gradient, in order."""
    return [place for place, item in leaves(record, path) if is_tensor(item) and item.get("requires_grad")]


def gradients_by_path(paths: list[str], everything: list[str], recorded: Any) -> dict[str, Any]:
    """Maps paths to the records of their gradients. Dumps of rankprobe have one for each tensor that required a gradient (`paths`),
    those of msprobe one for each positional value (`everything`). Returns {} if neither count matches."""
    if not isinstance(recorded, list):
        return {}
    for names in (paths, everything):
        if len(names) == len(recorded):
            return dict(zip(names, recorded))
    return {}
