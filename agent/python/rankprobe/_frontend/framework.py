# SPDX-License-Identifier: Apache-2.0
"""Description of a framework, which its front end provides."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional


@dataclasses.dataclass(frozen=True)
class Framework:
    """A framework. name: its name in dump.json, such as "pytorch". version: the installed version.

    model_type, model_word: type of a model that start() takes, and its name in messages.
    rank: returns (rank, world size) in the framework's process group; None while there is none.
    """

    name: str
    version: str
    model_type: type
    model_word: str
    rank: Callable[[], Optional[tuple[int, int]]]

    def models(self, model: Any) -> list[Any]:
        """Returns the models in an argument of start() as a list."""
        return list(model) if isinstance(model, (list, tuple)) else [model]
