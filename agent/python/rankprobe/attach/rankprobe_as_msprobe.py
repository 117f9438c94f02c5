# SPDX-License-Identifier: Apache-2.0
"""Import hook of `rankprobe run --as-msprobe`, under which `import msprobe` imports rankprobe's modules.

A finder ahead of all others handles msprobe and everything below it, with modules
that hold rankprobe's names under msprobe's. A name that rankprobe does not have is
an ImportError that says so; msprobe itself is never imported in its place.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import types

# Names of rankprobe.pytorch, in the modules from which programs import them in msprobe 26.2.
_NAMES = {
    "msprobe": (),
    "msprobe.pytorch": ("PrecisionDebugger", "TrainerMon", "module_dump", "module_dump_end", "random_save", "seed_all"),
    "msprobe.pytorch.monitor": (),
    "msprobe.pytorch.monitor.module_hook": ("TrainerMon",),
    "msprobe.pytorch.common": ("seed_all",),
    "msprobe.pytorch.common.utils": ("seed_all",),
    "msprobe.pytorch.dump": (),
    "msprobe.pytorch.dump.debugger": (),
    "msprobe.pytorch.dump.debugger.precision_debugger": ("PrecisionDebugger", "module_dump", "module_dump_end"),
    "msprobe.pytorch.debugger": (),
    "msprobe.pytorch.debugger.precision_debugger": ("PrecisionDebugger", "module_dump", "module_dump_end"),
    "msprobe.pytorch.reproducibility": (),
    "msprobe.pytorch.reproducibility.random_reproducibility": ("random_save",),
    "msprobe.core": (),
    "msprobe.core.common": (),
    "msprobe.core.monitor_v2": ("TrainerMonitorV2",),
    "msprobe.core.monitor_v2.trainer": ("TrainerMonitorV2",),
    "msprobe.core.common.exceptions": ("MsprobeException",),
}
_OTHER_NAMES = {"MsprobeException": "RankprobeError"}
_SWITCH = "RANKPROBE_AS_MSPROBE"


def _missing(name: str) -> str:
    return f"rankprobe has no {name} (rankprobe run --as-msprobe replaces msprobe; it has: " + ", ".join(
        sorted({n for names in _NAMES.values() for n in names})) + ")"


def _tell_of_the_real_one() -> None:
    """Reports once in a job that an installed msprobe is replaced."""
    if os.environ.get(_SWITCH) == "told" or os.environ.get("RANK", "0") != "0":
        return
    os.environ[_SWITCH] = "told"
    try:
        real = importlib.machinery.PathFinder.find_spec("msprobe")
    except Exception:  # noqa: BLE001 - the installation of msprobe may be broken
        return
    if real is not None:
        place = os.path.dirname(real.origin) if real.origin else "this environment"
        from rankprobe._say import say

        say(f"rankprobe: --as-msprobe: rankprobe records in place of the msprobe of {place}")


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "msprobe":
            _tell_of_the_real_one()
        if _NAMES[module.__name__]:
            import rankprobe.pytorch as ours

            for name in _NAMES[module.__name__]:
                setattr(module, name, getattr(ours, _OTHER_NAMES.get(name, name)))
        module.__dict__["__all__"] = list(_NAMES[module.__name__])
        module.__file__ = __file__  # Programs print where the module comes from.

        def __getattr__(name: str) -> object:
            raise AttributeError(_missing(f"{module.__name__}.{name}"))

        module.__getattr__ = __getattr__  # type: ignore[method-assign]


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: types.ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "msprobe":
            return None
        if name not in _NAMES:
            # Also reached by `from msprobe.pytorch import X`, which searches for a module X last.
            # A ModuleNotFoundError would be replaced there by a less specific message.
            raise ImportError(_missing(name), name=name)
        # All modules are packages, so that imports of submodules reach this finder.
        return importlib.machinery.ModuleSpec(name, _Loader(), origin=__file__, is_package=True)
