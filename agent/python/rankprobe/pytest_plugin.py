# SPDX-License-Identifier: Apache-2.0
"""pytest plugin for golden files: with --rankprobe-golden DIR a test compares the numbers of a model (docs/numerics-in-ci.md).

    def test_numbers(rankprobe_golden):
        torch.manual_seed(0)
        model = make_model()
        with rankprobe_golden("model", model):
            model(x).sum().backward()

Each pytest run of the environment loads this entry point, so it imports the rest of the package only when the fixture is used.
"""

from __future__ import annotations

import contextlib
import pathlib
import re
from typing import Any, Callable, ContextManager, Iterator, Mapping, Optional

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rankprobe")
    group.addoption("--rankprobe-golden", metavar="DIR", help="compare what the fixture rankprobe_golden records with the files of DIR")
    group.addoption("--rankprobe-update", action="store_true", help="write these files instead of comparing")
    parser.addini("rankprobe_golden", "the directory of --rankprobe-golden, from the root directory of the tests")


def _directory(config: pytest.Config) -> Optional[pathlib.Path]:
    given = config.getoption("--rankprobe-golden")
    if given:
        return pathlib.Path(config.invocation_params.dir, given)
    ini = config.getini("rankprobe_golden")
    return pathlib.Path(config.rootpath, ini) if ini else None


@pytest.fixture
def rankprobe_golden(request: pytest.FixtureRequest) -> Callable[..., ContextManager[None]]:
    """Fixture rankprobe_golden(name, model, tolerances=None): a context manager that compares the calls of its block with
    DIR/name.json. tolerances: relative, by dtype; default rankprobe.golden.TOLERANCES. The test is skipped if no directory is
    given, and fails if numbers differ. Raises ValueError for a name that cannot be a file name."""
    directory = _directory(request.config)
    if directory is None:
        pytest.skip("numbers are compared with --rankprobe-golden DIR")
    update = bool(request.config.getoption("--rankprobe-update"))

    @contextlib.contextmanager
    def compared(name: str, model: Any, tolerances: Optional[Mapping[str, float]] = None) -> Iterator[None]:
        __tracebackhide__ = True
        from rankprobe.golden import NumbersDiffer, golden

        if not re.fullmatch(r"[\w][\w.-]*", name):
            raise ValueError(f"{name!r} cannot be the name of a golden file: letters, digits, _ . - are possible")
        said = ""
        try:
            with golden(directory / f"{name}.json", model, update, tolerances):
                yield
        except NumbersDiffer as error:
            said = str(error)
        if said:  # Outside of the handler, because pytest also prints the exception that is being handled.
            pytest.fail(f"{said}\nto accept the numbers of this run: pytest --rankprobe-update", pytrace=False)

    return compared
