# SPDX-License-Identifier: Apache-2.0
"""What a front end must say of the framework that it is for."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional


@dataclasses.dataclass(frozen=True)
class Framework:
    """name: of dump.json, "pytorch". version: as it is installed.

    model_type, model_word: what start() takes, and its name in messages.
    rank: (rank, world size) of the framework's own process group; None while there is none.
    """

    name: str
    version: str
    model_type: type
    model_word: str
    rank: Callable[[], Optional[tuple[int, int]]]

    def models(self, model: Any) -> list[Any]:
        """The models of an argument of start()."""
        return list(model) if isinstance(model, (list, tuple)) else [model]
