# SPDX-License-Identifier: Apache-2.0
"""Parameters of the selected tests, for a fixture that is made once for all of them."""

from __future__ import annotations

import pytest


def names_of(request: pytest.FixtureRequest) -> list[str]:
    """Returns the values of the parameter `name` of the selected tests that use the fixture of `request`, in their order."""
    return list(dict.fromkeys(
        item.callspec.params["name"] for item in request.session.items
        if isinstance(item, pytest.Function) and request.fixturename in item.fixturenames and hasattr(item, "callspec")))
