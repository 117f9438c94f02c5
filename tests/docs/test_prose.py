# SPDX-License-Identifier: Apache-2.0
"""One idea a bullet: no paragraph or bullet of 90 words."""

from __future__ import annotations

import pathlib
import re

import pytest

from conftest import ROOT, documents

_LIMIT = 90


@pytest.mark.parametrize("path", documents(), ids=lambda p: str(p.relative_to(ROOT)))
def test_no_bullet_is_a_page(path: pathlib.Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    items = re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) |\|)", text)
    long = [f"{len(item.split())} words: {' '.join(item.split())[:80]}.." for item in items
            if len(item.split()) >= _LIMIT and not item.startswith("|")]
    assert not long
