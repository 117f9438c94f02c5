# SPDX-License-Identifier: Apache-2.0
"""First thing in a process under `rankprobe run` and `rankprobe isolate`: waits for PyTorch's import, MindSpore's, or vLLM's.

Runs the sitecustomize that this one hides, then puts a finder in front that
attaches once PyTorch, or what makes vLLM's workers, has been imported. A fault here is one line on
stderr; the user's program goes on. Under --as-msprobe it attaches to nothing:
the program has a debugger of its own, which is made rankprobe's.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types


def _run_hidden() -> None:
    """The next sitecustomize in sys.path."""
    here = os.path.dirname(os.path.abspath(__file__))
    for entry in sys.path:
        path = os.path.join(entry or ".", "sitecustomize.py")
        if os.path.abspath(entry or ".") != here and os.path.isfile(path):
            spec = importlib.util.spec_from_file_location("rankprobe_hidden_sitecustomize", path)
            assert spec is not None and spec.loader is not None
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
            return


def _say(text: str) -> None:
    """As rankprobe._say, which may be what cannot be imported."""
    try:
        if sys.stderr is not None and sys.__stderr__ is not None and os.get_inheritable(sys.__stderr__.fileno()):
            sys.__stderr__.write(text + "\n")
            sys.__stderr__.flush()
    except (OSError, ValueError):
        pass


def _watch_optimizers(module: types.ModuleType) -> None:
    # What our modules ask PyTorch for when they are imported is there: all of it has been imported.
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
    # Also where rankprobe is not installed and vLLM finds no entry point.
    from rankprobe import vllm

    vllm.register()


class _Finder(importlib.abc.MetaPathFinder):
    """Acts when one of these modules has been imported."""

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
            except Exception as error:  # noqa: BLE001 - the user's program goes on
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
