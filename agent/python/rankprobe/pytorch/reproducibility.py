# SPDX-License-Identifier: Apache-2.0
"""seed_all() for reproducible runs, and random_save(), which logs calls that draw random numbers."""

from __future__ import annotations

import atexit
import csv
import functools
import json
import os
import pathlib
import random
import threading
import time
import traceback
from typing import Any, Callable, Iterator

import torch

from rankprobe.pytorch._errors import InvalidParameterError

try:
    import numpy
except ImportError:  # pragma: no cover - torch without numpy
    numpy = None  # type: ignore[assignment]

_MAX_SEED = 2**32 - 1
_LIST = pathlib.Path(__file__).parent / "data" / "random_apis.json"


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False, is_enhanced: bool = False) -> None:
    """Seeds Python, NumPy and PyTorch, and selects deterministic kernels.

    seed: 0 .. 2**32 - 1. mode: torch.use_deterministic_algorithms(mode).
    rm_dropout: functional dropouts run with p=0. is_enhanced: each random API
    starts from the generator state of this call, so that each call repeats.

    Raises InvalidParameterError for another type or range.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= _MAX_SEED:
        raise InvalidParameterError(f"seed must be an int in [0, {_MAX_SEED}], not {seed!r}")
    for name, value in (("mode", mode), ("rm_dropout", rm_dropout), ("is_enhanced", is_enhanced)):
        if not isinstance(value, bool):
            raise InvalidParameterError(f"{name} must be a bool, not {value!r}")
    os.environ["PYTHONHASHSEED"] = str(seed)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    for variable in ("HCCL_DETERMINISTIC", "LCCL_DETERMINISTIC"):
        os.environ[variable] = "true" if variable.startswith("HCCL") else "1"
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed)
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    npu = getattr(torch, "npu", None)
    if npu is not None:
        npu.manual_seed_all(seed)
    torch.use_deterministic_algorithms(mode)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.enabled = False
    torch.backends.cudnn.benchmark = False
    if rm_dropout:
        _remove_dropout()
    if is_enhanced:
        _repeat_every_call()


def _remove_dropout() -> None:
    for name in ("dropout", "dropout2d", "dropout3d"):
        original = getattr(torch.nn.functional, name)
        if getattr(original, "rankprobe_without_dropout", False):
            continue

        @functools.wraps(original)
        def without(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False,
                    _original: Callable[..., Any] = original) -> Any:
            return _original(input, 0.0, training, inplace)

        without.rankprobe_without_dropout = True  # type: ignore[attr-defined]
        setattr(torch.nn.functional, name, without)


def _random_apis() -> Iterator[tuple[str, Any, str]]:
    """Yields (library, host, name) of every random API that exists in this process."""
    hosts = {"python_random": random, "numpy_random": numpy.random if numpy is not None else None,
             "torch_random": torch, "tensor_random": torch.Tensor}
    for library, names in json.loads(_LIST.read_text(encoding="utf-8")).items():
        for name in names:
            if hosts[library] is not None and callable(getattr(hosts[library], name, None)):
                yield library, hosts[library], name


def _repeat_every_call() -> None:
    python_state, torch_state = random.getstate(), torch.get_rng_state()
    numpy_state = numpy.random.get_state() if numpy is not None else None

    def restore() -> None:
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)

    for _, host, name in list(_random_apis()):
        original = getattr(host, name)
        if getattr(original, "rankprobe_repeats", False):
            continue

        @functools.wraps(original)
        def repeating(*args: Any, _original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            restore()
            try:
                return _original(*args, **kwargs)
            finally:
                restore()

        repeating.rankprobe_repeats = True  # type: ignore[attr-defined]
        setattr(host, name, repeating)


class _RandomLog:
    """CSV file of random calls, which is renamed when the rank becomes known."""

    def __init__(self, directory: str) -> None:
        self._directory = pathlib.Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._stamp = time.strftime("%Y%m%d%H%M%S")
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._pid = os.getpid()
        self._path = self._name()
        self._file = open(self._path, "w", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file)
        self._rows.writerow(["api_name", "stack"])
        self._file.flush()
        atexit.register(self._file.close)

    def _name(self) -> pathlib.Path:
        dist = torch.distributed
        if dist.is_available() and dist.is_initialized():
            return self._directory / f"random_rank{dist.get_rank()}_{self._stamp}.csv"
        return self._directory / f"random_proc{self._pid}_{self._stamp}.csv"

    def add(self, key: str) -> None:
        if os.getpid() != self._pid or self._file.closed:
            return
        frames = [f"File {f.filename}, line {f.lineno}, in {f.name}, \n {f.line}"
                  for f in reversed(traceback.extract_stack()) if f.line and f.filename != __file__]
        with self._lock:
            number = self._numbers.get(key, 0)
            self._numbers[key] = number + 1
            path = self._name()
            if path != self._path:
                self._path.rename(path)
                self._path = path
            self._rows.writerow([f"{key}.{number}", "\n".join(frames)])
            self._file.flush()


def random_save(output_path: str = "./output") -> None:
    """Writes a row (api_name, stack) for each call of a random API from now on.

    The file is output_path/random_rank{R}_{time}.csv, or random_proc{pid}_.. while
    there is no rank. Raises InvalidParameterError for an empty or non-str path.
    """
    if not isinstance(output_path, str) or not output_path:
        raise InvalidParameterError(f"output_path must be a non-empty str, not {output_path!r}")
    log = _RandomLog(output_path)
    inside = threading.local()
    for library, host, name in list(_random_apis()):
        original = getattr(host, name)

        @functools.wraps(original)
        def logged(*args: Any, _original: Callable[..., Any] = original, _key: str = f"{library}.{name}", **kwargs: Any) -> Any:
            if not getattr(inside, "busy", False):
                inside.busy = True
                try:
                    log.add(_key)
                finally:
                    inside.busy = False
            return _original(*args, **kwargs)

        setattr(host, name, logged)
