# SPDX-License-Identifier: Apache-2.0
"""Traits of an operator's arguments by its schemas: which ones it writes and, for
vLLM's operators, which ones hold no data of the call. Pure functions of schemas."""

from __future__ import annotations

import re
from typing import Any, Iterable

# Names of arguments that hold memory addresses of the process, as a number or in a tensor.
_ADDRESS = re.compile(r"handle|ptr|pointer|^_?fa$")
_MAKES_ADDRESS = re.compile(r"handler|ptr|pointer|shared_buffer|custom_ar")
# Names of arguments that hold the memory of all requests, which has 1 GiB and more, most of it never written.
_CACHE = re.compile(r"cache|^(conv_|ssm_)?states?$|state_source")
_NO_CACHE = re.compile(r"cos_sin|dtype|dummy")


def traits_of(schemas: Iterable[Any], of_vllm: bool) -> dict[str, Any]:
    """Returns the traits of all overloads of one operator, as `api()` takes them.

    An argument that any overload writes is treated as written, since the overload of a call is not known.
    of_vllm: whether it is an operator of vLLM, for which msprobe defines no record.
    """
    written: tuple[list[int], list[str]] = ([], [])
    addresses: tuple[list[int], list[str]] = ([], [])
    caches: tuple[list[int], list[str]] = ([], [])
    returns_address = False
    for schema in schemas:
        for position, argument in enumerate(schema.arguments):
            kind, name = str(argument.type), argument.name
            alias = getattr(argument, "alias_info", None)
            cache = of_vllm and "Tensor" in kind and _CACHE.search(name) and not _NO_CACHE.search(name)
            if cache:
                _add(caches, position, name)
            elif alias is not None and alias.is_write:
                _add(written, position, name)
            if of_vllm and kind in ("int", "Tensor") and _ADDRESS.search(name):
                _add(addresses, position, name)
        operator = schema.name.partition("::")[2]
        if of_vllm and _MAKES_ADDRESS.search(operator):
            returns_address = returns_address or any(str(value.type) == "int" for value in schema.returns)
    traits: dict[str, Any] = {}
    if any("!" in str(schema) for schema in schemas):
        traits["writes_arguments"] = True
    if written[0]:
        traits["written"] = written
        traits["gives_written"] = of_vllm
    if addresses[0]:
        traits["addresses"] = addresses
    if caches[0]:
        traits["caches"] = caches
    if returns_address:
        traits["returns_address"] = True
    return traits


def _add(to: tuple[list[int], list[str]], position: int, name: str) -> None:
    if position not in to[0]:
        to[0].append(position)
    if name not in to[1]:
        to[1].append(name)
