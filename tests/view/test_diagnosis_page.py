# SPDX-License-Identifier: Apache-2.0
"""The page of `rankprobe diagnose --html`, opened as a file: on light and dark screens, narrow and wide, and on paper."""

from __future__ import annotations

import pathlib
from typing import Any, Iterator

import numpy
import pytest

import harness
import rankprobe
from conftest import PICTURES
from test_dumps import _axe


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """Of a run with a NaN from step 7 on, in a call with a long name."""
    directory = tmp_path_factory.mktemp("page")
    collector = harness.Collector(directory).start()
    session = rankprobe.Session(collector.address, run="train", rank=0, config_json='{"dump_path": "d"}')
    session.wait_connected(60)
    for step in range(10):
        session.start()
        made = numpy.full(4, numpy.nan if step >= 7 else 1.0, "f")
        session.call("Torch", "log" + "_of_a_long_name" * 12, [numpy.ones(4, "f")], [made])
        session.call("Torch", "mul", [made], [made])
        session.stop()
        session.step()
    session.close()
    collector.cli("diagnose", "run:train", "--html", directory / "answer.html", check=False)
    yield directory / "answer.html"
    assert collector.stop() == 0


def open_file(browser: Any, place: pathlib.Path, **options: Any) -> tuple[Any, list[str]]:
    """The page, and what it asked for besides itself."""
    context = browser.new_context(bypass_csp=True, **options)
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(place.as_uri())
    return page, [url for url in asked if url != place.as_uri()]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_needs_no_server_and_can_be_read(browser, place, scheme: str, width: int) -> None:
    page, asked = open_file(browser, place, color_scheme=scheme, viewport={"width": width, "height": 844})
    assert asked == [] and page.title() == "rankprobe diagnose run:train"
    assert page.locator("article.exact").first.is_visible() and page.locator("article p.command code").first.inner_text().startswith("rankprobe ")
    red, green, blue = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (red + green + blue > 600) == (scheme == "light")
    found: dict = {}
    _axe(page, found, scheme, width)
    assert found == {}
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"diagnosis_{scheme}_{width}.png", full_page=True)
    page.context.close()


def test_paper_is_white_whatever_the_screen_is(browser, place) -> None:
    page, _ = open_file(browser, place, color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('article p')).color") == "rgb(0, 0, 0)"
    assert page.evaluate("getComputedStyle(document.querySelector('article')).breakInside") == "avoid"
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.context.close()
