# SPDX-License-Identifier: Apache-2.0
"""`custom_op_namespaces`: recording of calls of torch.ops.NS as NS.op."""

from __future__ import annotations

import sys
from typing import Any, Optional

import torch

from rankprobe import _native
from rankprobe.pytorch._apis import Apis
from rankprobe.pytorch._operator_traits import traits_of
from rankprobe.pytorch._process import warn

# Namespaces of vLLM. Calls of one operator by another are inside of the outermost call.
_VLLM = ("_C", "_C_cache_ops", "_moe_C", "vllm", "vllm_ir")


def namespaces_of(plan: dict[str, Any]) -> list[str]:
    """Returns the namespaces of the plan in force. The default is msprobe's, and also vLLM's in a program that has imported vLLM."""
    named: Optional[list[str]] = plan.get("custom_op_namespaces")
    if named is not None:
        return named
    return ["_C_ascend", *(_VLLM if "vllm" in sys.modules else ())]


class Namespaces:
    """Registers the existing operators of some namespaces. Those of libraries that are
    loaded later are found by the next refresh(). Called only by PrecisionDebugger.
    """

    def __init__(self, apis: Apis) -> None:
        self._apis = apis
        self._names: set[str] = set()
        self._loaded: Any = None
        self._registered: list[tuple[Any, str]] = []

    def use(self, names: list[str]) -> None:
        """Sets the namespaces. Operators of others are removed at once, new ones are added by the next refresh()."""
        if set(names) == self._names:
            return
        self._names, self._loaded = set(names), None
        for host, name in self._registered:
            if host.name not in self._names:
                self._apis.restore_custom(host, name)
        self._registered = [entry for entry in self._registered if entry[0].name in self._names]

    def refresh(self) -> None:
        """Registers operators that did not exist at the last call. Returns at once if nothing was loaded since."""
        loaded = (len(sys.modules), len(torch.ops.loaded_libraries))
        if not self._names or loaded == self._loaded:
            return
        try:
            self._register()
        except Exception as error:  # noqa: BLE001 - the training continues
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
        """Removes the stand-ins."""
        for host, name in self._registered:
            self._apis.restore_custom(host, name)
        self._registered.clear()
