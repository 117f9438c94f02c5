# SPDX-License-Identifier: Apache-2.0
"""Targets of documents and comments exist: links, sections, files, environment variables."""

from __future__ import annotations

import functools
import pathlib
import re

import pytest

from conftest import ROOT, documents

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_SOURCES = {".cc", ".h", ".py", ".proto", ".sh", ".cmake", ".inc", ".toml", ".service", ".yml"}
# Documents of others that were the sources of this project; readers here do not have them.
_ELSEWHERE = re.compile(r"\b(?:CAPTURE|ANALYSIS|FEATURES|FORMATS|ANCHORS)(?:\.md)?,? (?:sections?\b|§)")
_ROOMS = "agent|analysis|cli|cmake|collector|common|deploy|docs|dump_format|examples|proto|tests"


def _headings(text: str) -> list[str]:
    return [m.group(1).strip() for m in re.finditer(r"^#{1,6} +(.+?) *$", _FENCE.sub("", text), re.MULTILINE)]


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


@functools.lru_cache(maxsize=None)
def _sections(path: pathlib.Path) -> tuple[frozenset[str], frozenset[str]]:
    text = path.read_text()
    headings = _headings(text)
    leads = re.findall(r"^(?:\* |- )?\*\*([^*]+?)[.:]?\*\*", text, re.MULTILINE)  # "**Offers.** If Welcome .."
    return frozenset(headings + leads), frozenset(_anchor(h) for h in headings)


def _comments(path: pathlib.Path, text: str) -> str:
    """The text with comment leaders taken away and wrapped lines joined, so that a reference over two lines is one."""
    if path.suffix != ".md":
        text = re.sub(r"\n[ \t]*(?://|#)[ \t]*", " ", "\n" + text)
    return re.sub(r"\s+", " ", text)


def _exists(name: str) -> bool:
    """A file, a directory, several by a pattern, or a module named without its extension."""
    name = name.rstrip(".,:;/")
    if any(c in name for c in "*{"):
        name = re.sub(r"\{[^}]*\}", "*", name)
        return any(True for _ in ROOT.glob(name)) or any(True for _ in ROOT.glob(name + ".*"))
    return (ROOT / name).exists() or any(True for _ in (ROOT / name).parent.glob(pathlib.Path(name).name + ".*"))


@pytest.mark.parametrize("path", documents(), ids=lambda p: str(p.relative_to(ROOT)))
def test_links_resolve(path: pathlib.Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", _FENCE.sub("", path.read_text()))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        if not there.exists():
            wrong.append(f"{target}: no such file")
        elif anchor and anchor not in _sections(there)[1]:
            wrong.append(f"{target}: no such section in {there.relative_to(ROOT)}")
    assert not wrong


def test_every_document_is_reached_from_the_readme() -> None:
    seen: set[pathlib.Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        path = todo.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        for target in re.findall(r"\]\(([^)#\s]+\.md)", path.read_text()):
            todo.append((path.parent / target).resolve())
    missing = {p for p in ROOT.glob("docs/**/*.md")} - seen
    assert not missing


def test_sections_that_sources_name_are_there(tracked: list[pathlib.Path]) -> None:
    """docs/x.md, "Section"."""
    wrong = []
    for path in tracked:
        if path.suffix not in _SOURCES | {".md"} or "golden" in path.parts or path.parent == ROOT / "tests/docs":
            continue
        text = _comments(path, path.read_text(errors="replace"))
        for document, section in re.findall(r'(docs/[\w.-]+\.md)(?:[,:]? (?:section )?"([^"]{1,80})")?', text):
            if not (ROOT / document).is_file():
                wrong.append(f"{path.relative_to(ROOT)}: {document} is not there")
            elif section and section.rstrip(".,") not in _sections(ROOT / document)[0]:
                wrong.append(f"{path.relative_to(ROOT)}: {document} has no section \"{section}\"")
        if stray := _ELSEWHERE.search(text):
            wrong.append(f"{path.relative_to(ROOT)}: refers to {stray.group(0)}, which is not here")
    assert not wrong


def test_paths_that_documents_name_are_there() -> None:
    wrong = []
    for path in documents():
        text = path.read_text()
        for name in re.findall(rf"(?<![\w/.-])((?:{_ROOMS})/[\w./*{{}},-]*[\w*}}])", text):
            # Kubernetes calls a deployment of that name deploy/rankprobe.
            if not _exists(name) and name != "deploy/rankprobe":
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert not wrong


def test_paths_that_comments_name_are_there(tracked: list[pathlib.Path]) -> None:
    """Files with an extension of ours, named from the root."""
    wrong = []
    pattern = re.compile(rf"(?<![\w/.\"<-])((?:{_ROOMS})/[\w./-]*\.(?:h|cc|py|md|sh|proto|inc|cmake|json))\b")
    for path in tracked:
        if path.suffix not in {".cc", ".h", ".py", ".proto", ".sh", ".cmake"} or "golden" in path.parts:
            continue
        for line in path.read_text(errors="replace").splitlines():
            comment = re.search(r"(?://|#(?!include)|\"\"\")(.*)", line)
            for name in pattern.findall(comment.group(1) if comment else ""):
                if not (ROOT / name).exists() and path.parent != ROOT / "tests/docs":
                    wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert not wrong


def test_environment_variables_are_real(tracked: list[pathlib.Path]) -> None:
    """Those that the documents promise are read somewhere."""
    code = "\n".join(p.read_text(errors="replace") for p in tracked
                     if p.suffix in {".cc", ".h", ".py", ".sh", ".txt", ".cmake"} and p.parts[-2] != "docs")
    wrong = []
    for path in documents():
        for name in set(re.findall(r"\bRANKPROBE_[A-Z_]+[A-Z]\b", path.read_text())):
            if name not in code:
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert not wrong
