# SPDX-License-Identifier: Apache-2.0
"""The front end's sources: vendored files are what was published, and every text has its Chinese."""

from __future__ import annotations

import hashlib
import pathlib
import re

APP = pathlib.Path(__file__).resolve().parents[2] / "web" / "app"


def _sources() -> dict[pathlib.Path, str]:
    return {path: path.read_text() for suffix in ("ts", "tsx") for path in APP.rglob(f"*.{suffix}") if "vendor" not in path.parts}


def test_vendored_files_are_those_of_their_packages() -> None:
    listed = dict(reversed(line.split()) for line in (APP / "vendor" / "SHA256SUMS").read_text().splitlines())
    there = {path.name for path in (APP / "vendor").iterdir()} - {"SHA256SUMS", "README.md"}
    assert there == listed.keys()
    for name, digest in listed.items():
        assert hashlib.sha256((APP / "vendor" / name).read_bytes()).hexdigest() == digest, name


def test_every_text_has_its_chinese() -> None:
    chinese = set(re.findall(r'^  "((?:[^"\\]|\\.)*)":', (APP / "chinese.ts").read_text(), re.M))
    others = "\n".join(text for path, text in _sources().items() if path.name != "chinese.ts")
    asked = set(re.findall(r'\bt\(\s*"((?:[^"\\]|\\.)*)"', others))
    assert len(asked) > 150
    assert asked - chinese == set()
    # Texts that are said through a table, and no text that nothing says.
    assert {text for text in chinese if f'"{text}"' not in others} == set()


def test_no_text_is_put_into_the_document_as_markup() -> None:
    for path, text in _sources().items():
        assert not re.search(r"innerHTML|dangerouslySetInnerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), path
        # No address but this server's.
        assert not re.search(r"https?://", text), path
