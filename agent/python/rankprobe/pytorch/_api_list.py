"""The list of APIs that are recorded: JSON of ours, or msprobe's support_wrap_ops.yaml."""

from __future__ import annotations

import json
import os
import pathlib
import re
from typing import Optional

_LIST = pathlib.Path(__file__).parent / "data" / "apis.json"
# Sections of support_wrap_ops.yaml. Eager PyTorch calls nothing below torch.ops.aten by name.
_YAML_PREFIXES: dict[str, Optional[str]] = {
    "functional": "Functional", "tensor": "Tensor", "torch": "Torch", "_VF": "VF", "torch_npu": "NPU",
    "distributed": "Distributed", "mindspeed": "MindSpeed", "aten": None, "npu_distributed": None,
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def load_list(path: Optional[str] = None) -> dict[str, list[str]]:
    """Prefix -> names. `path`, else RANKPROBE_API_LIST, else the built-in list.

    A file named .yaml or .yml has the form of support_wrap_ops.yaml, any other
    is a JSON object of lists. Raises ValueError that names the file, and of
    YAML the line.
    """
    path = path or os.environ.get("RANKPROBE_API_LIST") or str(_LIST)
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
        data = _of_yaml(text) if path.endswith((".yaml", ".yml")) else json.loads(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"API list {path}: {error}") from error
    if not isinstance(data, dict) or not all(
            isinstance(names, list) and all(isinstance(n, str) for n in names) for names in data.values()):
        raise ValueError(f"API list {path}: expected an object of lists of API names")
    return data


def _of_yaml(text: str) -> dict[str, list[str]]:
    """Block lists of names under section names: what the file is made of, and no other YAML."""
    found: dict[str, list[str]] = {}
    names: Optional[list[str]] = None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#", 1)[0].rstrip()
        if not line or line == "---":
            continue
        if not line.startswith((" ", "-")):
            section, colon, rest = line.partition(":")
            if section not in _YAML_PREFIXES or not colon:
                raise ValueError(f"line {number}: expected one of the sections {', '.join(_YAML_PREFIXES)}")
            if rest.strip() not in ("", "[]"):
                raise ValueError(f"line {number}: expected names, each on its line after '- '")
            prefix = _YAML_PREFIXES[section]
            names = [] if prefix is None else found.setdefault(prefix, [])
            continue
        dash, _, name = line.strip().partition(" ")
        name = name.strip().strip("'\"")
        if dash != "-" or names is None or not _NAME.fullmatch(name):
            raise ValueError(f"line {number}: expected '- NAME' below a section")
        names.append(name)
    return found
