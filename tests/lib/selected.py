# SPDX-License-Identifier: Apache-2.0
"""What the tests of this session ask of a fixture that is made once for all of them."""

from __future__ import annotations

import pytest


def names_of(request: pytest.FixtureRequest) -> list[str]:
    """The values of the parameter `name` of the selected tests that use the fixture that `request` is of, in their order."""
    return list(dict.fromkeys(
        item.callspec.params["name"] for item in request.session.items
        if isinstance(item, pytest.Function) and request.fixturename in item.fixturenames and hasattr(item, "callspec")))
