# SPDX-License-Identifier: Apache-2.0
"""Startup module of processes under `rankprobe run` and `rankprobe isolate`, which waits for the import of PyTorch, MindSpore or vLLM.

Runs the sitecustomize that this one hides, then installs a finder that attaches when
PyTorch, MindSpore or vLLM's worker module has been imported. A fault here is one line
on stderr; the user's program continues. Under --as-msprobe it attaches to nothing,
because the program constructs msprobe's debugger itself, for which it gets rankprobe's.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types


def _run_hidden() -> None:
    """Executes the next sitecustomize in sys.path."""
    here = os.path.dirname(os.path.abspath(__file__))
    for entry in sys.path:
        path = os.path.join(entry or ".", "sitecustomize.py")
        if os.path.abspath(entry or ".") != here and os.path.isfile(path):
            spec = importlib.util.spec_from_file_location("rankprobe_hidden_sitecustomize", path)
            assert spec is not None and spec.loader is not None
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
            return


def _say(text: str) -> None:
    """Writes a line to stderr as rankprobe._say, whose import may fail here."""
    try:
        if sys.stderr is not None and sys.__stderr__ is not None and os.get_inheritable(sys.__stderr__.fileno()):
            sys.__stderr__.write(text + "\n")
            sys.__stderr__.flush()
    except (OSError, ValueError):
        pass


def _watch_optimizers(module: types.ModuleType) -> None:
    # PyTorch is completely imported, so rankprobe's modules can use all of it when they are imported.
    optimizer = module.optim.Optimizer
    settings = os.environ.get("RANKPROBE_ISOLATE")
    if settings:
        from rankprobe.pytorch import _isolate_hook

        return _isolate_hook.install(optimizer, settings)
    from rankprobe.pytorch import _attach_hook

    return _attach_hook.install(optimizer)


def _watch_mindspore(module: types.ModuleType) -> None:
    from rankprobe.mindspore import _attach_hook

    _attach_hook.install(module)


def _watch_workers(_: types.ModuleType) -> None:
    # Called here too, because vLLM finds no entry point if rankprobe is not installed but only in the path.
    from rankprobe import vllm

    vllm.register()


class _Finder(importlib.abc.MetaPathFinder):
    """Calls the function of a watched module when that module has been imported."""

    watched = {  # noqa: RUF012 - typing would be one more import in every process
        "torch": _watch_optimizers, "mindspore": _watch_mindspore, "vllm.v1.worker.worker_base": _watch_workers}
    busy = False

    def find_spec(self, name: str, path: object = None, target: types.ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self.watched or self.busy:
            return None
        self.busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy = False
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            load(module)
            attach = self.watched.pop(name, None)
            try:
                if attach is not None:
                    attach(module)
            except Exception as error:  # noqa: BLE001 - the user's program continues
                # An interrupt while _native is imported becomes the cause of an ImportError.
                if not isinstance(error.__cause__, (Exception, type(None))):
                    raise error.__cause__ from None
                _say(f"rankprobe: not attached: {error!r}")

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


try:
    _run_hidden()
finally:
    if os.environ.get("RANKPROBE_AS_MSPROBE"):
        import rankprobe_as_msprobe  # type: ignore[import-not-found]

        sys.meta_path.insert(0, rankprobe_as_msprobe.Finder())
    if os.environ.get("RANKPROBE_ATTACH") or os.environ.get("RANKPROBE_ISOLATE"):
        sys.meta_path.insert(0, _Finder())
