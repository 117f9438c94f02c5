# SPDX-License-Identifier: Apache-2.0
"""List of the APIs to record: from an operator (a person), a file or the package."""

from __future__ import annotations

import os
import pathlib
from typing import Optional

from rankprobe import _native
from rankprobe._frontend.files import read_regular

_MAX_BYTES = 1 << 20
_LIST = pathlib.Path(__file__).parent / "data" / "apis.json"


def load_list(path: Optional[str] = None) -> dict[str, list[str]]:
    """Reads `path`, else RANKPROBE_API_LIST, else the built-in list, as prefix -> names.

    The file is a JSON object of lists, or has the form of msprobe's
    support_wrap_ops.yaml. Raises ValueError, which names the file and the place in
    it.
    """
    path = path or os.environ.get("RANKPROBE_API_LIST") or str(_LIST)
    try:
        return parse_list(read_regular(path, _MAX_BYTES).decode("utf-8").replace("\r\n", "\n"))
    except (OSError, ValueError) as error:
        raise ValueError(f"API list {path}: {error}") from error


def parse_list(text: str) -> dict[str, list[str]]:
    """Parses the text of a list, see load_list(). Raises ValueError."""
    return _native.parse_api_list(text)
