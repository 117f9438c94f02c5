# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the APIs of MindSpore, and for the primitives that cells own.

Each listed API is replaced in its module or class by a native stand-in that records
the outermost call of a thread. The call of a primitive is defined by its class, so a
primitive that a recorded cell owns is assigned to a class that records.
"""

from __future__ import annotations

import importlib
import json
import pathlib
import sys
from typing import Any, Optional

import mindspore
from mindspore.ops.primitive import Primitive

from rankprobe import _native
from rankprobe._frontend.process import warn

_LIST = pathlib.Path(__file__).parent / "data" / "apis.json"
_HOSTS = {
    "Functional": "mindspore.ops", "Mint": "mindspore.mint", "MintFunctional": "mindspore.mint.nn.functional",
    "Distributed": "mindspore.communication.comm_func", "MintDistributed": "mindspore.mint.distributed",
}


def _host(prefix: str) -> Any:
    if prefix == "Tensor":
        return mindspore.Tensor
    try:
        return importlib.import_module(_HOSTS[prefix])
    except (ImportError, KeyError):
        return None


class Apis:
    """Installs and removes the stand-ins of one Capture. Called only by PrecisionDebugger."""

    def __init__(self, capture: Any) -> None:
        self._capture = capture
        # (host, name, stand-in, original; None if the host inherits it)
        self._places: list[tuple[Any, str, Any, Any]] = []
        self._custom: dict[tuple[int, str], tuple[Any, str, Any, Any]] = {}
        # By id: the primitive and its original class.
        self._primitives: dict[int, tuple[Any, type]] = {}
        self._installed = False
        for prefix, names in json.loads(_LIST.read_text(encoding="utf-8")).items():
            host = _host(prefix)
            for name in names if host is not None else ():
                self._add(prefix, host, name)

    def _add(self, prefix: str, host: Any, dotted: str) -> None:
        *path, name = dotted.split(".")
        for part in path:
            host = getattr(host, part, None)
        function = getattr(host, name, None) if host is not None else None
        if function is None or not callable(function) or isinstance(function, type):
            return
        api = _native.api(function, self._capture, prefix, name, {"dropout": True} if "dropout" in name else {})
        self._places.append((host, name, api, vars(host).get(name)))

    def install(self) -> None:
        if self._installed:
            return
        self._installed = True
        for host, name, api, _ in self._places:
            setattr(host, name, api)
        for module, name, api, _ in self._custom.values():
            setattr(module, name, api)

    def remove(self) -> None:
        for primitive, kind in self._primitives.values():
            primitive.__class__ = kind
        self._primitives.clear()
        if not self._installed:
            return
        self._installed = False
        for host, name, api, original in self._places + list(self._custom.values()):
            if vars(host).get(name) is not api:
                continue
            if original is None:
                delattr(host, name)
            else:
                setattr(host, name, original)

    def watch_primitives(self, cells: list[Any]) -> None:
        """Records the primitives that these cells own as Primitive.{attribute}.{Class}. Repeated calls have no effect."""
        for cell in cells:
            for attribute, primitive in list(vars(cell).items()):
                if isinstance(primitive, Primitive) and id(primitive) not in self._primitives:
                    self._watch_primitive(attribute, primitive)

    def _watch_primitive(self, attribute: str, primitive: Any) -> None:
        kind = type(primitive)
        # The bound __call__ of its class, taken before the class is replaced.
        api = _native.api(primitive.__call__, self._capture, "Primitive", f"{attribute}.{kind.__name__}")

        def call(_: Any, *args: Any, **kwargs: Any) -> Any:
            return api(*args, **kwargs)

        try:
            primitive.__class__ = type(kind.__name__, (kind,), {
                "__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__})
        except TypeError as error:
            warn(f"{attribute} ({kind.__name__}) is not recorded: {error}")
            return
        self._primitives[id(primitive)] = (primitive, kind)

    # --- register_custom_api
    def register_custom(self, module: Any, name: str, prefix: Optional[str]) -> None:
        """Records `module.name` as `{prefix}.{name}`; None means the module's name. Raises ValueError if there is no such callable or
        the prefix is not a non-empty str."""
        if not isinstance(name, str) or not callable(getattr(module, name, None)):
            raise ValueError(f"{module!r} has no callable attribute {name!r}")
        prefix = getattr(module, "__name__", type(module).__name__) if prefix is None else prefix
        if not isinstance(prefix, str) or not prefix:
            raise ValueError(f"api_prefix must be a non-empty str, not {prefix!r}")
        if (id(module), name) in self._custom:
            return
        api = _native.api(getattr(module, name), self._capture, prefix, name)
        self._custom[id(module), name] = (module, name, api, vars(module).get(name))
        if self._installed:
            setattr(module, name, api)

    def restore_custom(self, module: Any, name: str) -> None:
        entry = self._custom.pop((id(module), name), None)
        if entry is None or vars(module).get(name) is not entry[2]:
            return
        if entry[3] is None:
            delattr(module, name)
        else:
            setattr(module, name, entry[3])


def packages() -> list[str]:
    """Returns the imported modules of MindSpore that can have stand-ins; for tests."""
    return [name for name in _HOSTS.values() if name in sys.modules]
