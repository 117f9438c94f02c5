# SPDX-License-Identifier: Apache-2.0
"""`custom_op_namespaces`: calls of torch.ops.NS, recorded as NS.op."""

from __future__ import annotations

import sys
from typing import Any, Optional

import torch

from rankprobe import _native
from rankprobe.pytorch._apis import Apis
from rankprobe.pytorch._operator_traits import traits_of
from rankprobe.pytorch._process import warn

# vLLM's own. What they call of one another is inside of the outermost.
_VLLM = ("_C", "_C_cache_ops", "_moe_C", "vllm", "vllm_ir")


def namespaces_of(plan: dict[str, Any]) -> list[str]:
    """Those of the plan in force; where it names none msprobe's, and in a program that has imported vLLM vLLM's own."""
    named: Optional[list[str]] = plan.get("custom_op_namespaces")
    if named is not None:
        return named
    return ["_C_ascend", *(_VLLM if "vllm" in sys.modules else ())]


class Namespaces:
    """The operators of some namespaces, as many as there are: libraries that are
    loaded later are found at the next refresh(). Called by PrecisionDebugger alone.
    """

    def __init__(self, apis: Apis) -> None:
        self._apis = apis
        self._names: set[str] = set()
        self._loaded: Any = None
        self._registered: list[tuple[Any, str]] = []

    def use(self, names: list[str]) -> None:
        """Others from now on: those that are not named any more are taken off, new ones come with the next refresh()."""
        if set(names) == self._names:
            return
        self._names, self._loaded = set(names), None
        for host, name in self._registered:
            if host.name not in self._names:
                self._apis.restore_custom(host, name)
        self._registered = [entry for entry in self._registered if entry[0].name in self._names]

    def refresh(self) -> None:
        """Registers what was not there the last time. Nothing loaded since: at once."""
        loaded = (len(sys.modules), len(torch.ops.loaded_libraries))
        if not self._names or loaded == self._loaded:
            return
        try:
            self._register()
        except Exception as error:  # noqa: BLE001 - the training goes on
            if _native.raise_later_if_programs(error):
                return
            warn(f"operators of {sorted(self._names)} are not recorded: {error!r}")
        self._loaded = loaded

    def _register(self) -> None:
        found: dict[tuple[str, str], list[Any]] = {}
        for schema in torch._C._jit_get_all_schemas():
            space, _, name = schema.name.partition("::")
            if space in self._names:
                found.setdefault((space, name), []).append(schema)
        known = {(host.name, name) for host, name in self._registered}
        for (space, name), schemas in sorted(found.items()):
            host = getattr(torch.ops, space)
            if (space, name) in known or not hasattr(host, name):
                continue
            of_vllm = space in _VLLM and "vllm" in sys.modules
            self._apis.register_custom(host, name, space, traits_of(schemas, of_vllm))
            self._registered.append((host, name))

    def remove(self) -> None:
        """Takes the stand-ins off again."""
        for host, name in self._registered:
            self._apis.restore_custom(host, name)
        self._registered.clear()
