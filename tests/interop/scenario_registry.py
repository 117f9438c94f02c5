# SPDX-License-Identifier: Apache-2.0
"""Registry of scenarios: name to Scenario, filled by @scenario."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable


@dataclasses.dataclass
class Scenario:
    name: str
    run: Callable[[Any, str], None]
    config: dict
    ranks: int = 1


SCENARIOS: dict[str, Scenario] = {}


def scenario(level: str = "mix", task: str = "statistics", ranks: int = 1, name: str = "", top: dict | None = None,
             **section: Any) -> Callable:
    """Registers a scenario; `section` are the fields of its task, `top` top-level ones."""

    def register(function: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
        fields = {"scope": [], "list": [], "data_mode": ["all"]}
        if task == "statistics":
            fields["summary_mode"] = "statistics"
        config = {"task": task, "dump_path": "./dump", "rank": [], "step": [], "level": level, "risk_level": "ALL",
                  **(top or {}), task: {**fields, **section}}
        if task == "structure":
            del config["structure"]
        key = name or function.__name__
        SCENARIOS[key] = Scenario(key, function, config, ranks)
        return function

    return register
