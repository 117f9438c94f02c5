# SPDX-License-Identifier: Apache-2.0
"""Plain words: documents, help, messages and the first sentence of each source file use standard terms, one idea a bullet."""

from __future__ import annotations

import functools
import pathlib
import re
import subprocess
from typing import Iterator

import pytest

from conftest import BUILD, ROOT, documents

_LIMIT = 90
CATALOGUE = pathlib.Path(__file__).with_name("messages.txt")
# What is not said, and what is said in its place.
WORDS = {
    r"told|tells?": "reported, prints", r"nobody|somebody|whoever|whomever|whom": "name the process, user or role",
    r"whole": "complete, all of", r"away": "unreachable, removed", r"gone|goes|going on": "closed, missing, continues",
    r"anew|afresh": "again", r"astray": "deviating", r"hand(?:s|ed)? on": "pass", r"(?:laid|lays?|lie[sd]?) beside": "compared with",
    r"nothing of": "none of", r"he|his|him": "it", r"in vain": "without success", r"affair|forerunner|thereof|whereof|hither": "the term of the field",
    r"not built|measured again|not measured since|the day before": "git history, or docs/adr", r"at commit|code of [0-9a-f]{7}": "the version",
}
BANNED = re.compile(r"(?<![\w/-])(" + "|".join(WORDS) + r")(?![\w/])", re.IGNORECASE)
# Headless fragments: a sentence begins with a noun or a verb.
RIDDLE = re.compile(r"(?:What|Which|Who|Whom|Whose|Whether|How|Where|Of|Behind|To|That)\b[^?]*(?:[.:;]|$)")
DATE = re.compile(r"\b\d{1,2} (?:January|February|March|April|May|June|July|August|September|October|November|December) \d{4}\b")


def prose(text: str) -> str:
    """Markdown without code, links' targets and comments."""
    text = re.sub(r"^ *```.*?^ *```|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`]*`|\]\([^)]*\)|\"[^\"]*\"", " ", text)


def faults(text: str) -> list[str]:
    return [f"{m[0]}: {' '.join(text[max(0, m.start() - 40):m.end() + 30].split())}" for m in BANNED.finditer(text)]


def openings() -> Iterator[tuple[str, str]]:
    """The first sentence of each source file that begins with a comment or a docstring."""
    patterns = [f"*.{suffix}" for suffix in ("cc", "h", "py", "sh", "ts", "tsx")]
    for name in subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split():
        text = re.sub(r"\A(?:#!.*\n)?(?:(?:#|//) SPDX.*\n)?", "", (ROOT / name).read_text())
        quoted = re.match(r'"""((?s:.*?))"""', text)
        lines = quoted[1].splitlines() if quoted else [line.lstrip("/# ") for line in re.match(r"(?:(?://|#(?!include)).*\n)*", text)[0].splitlines()]
        yield name, re.split(r"(?<=[.:;])\s", " ".join(lines))[0]


def product_sources(*patterns: str) -> Iterator[tuple[str, str]]:
    for name in subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split():
        path = pathlib.Path(name)
        if path.parts[0] not in ("tests", "examples") and not {"testing", "vendor"} & set(path.parts) and not path.stem.endswith("_test"):
            yield name, (ROOT / path).read_text()


def comments() -> Iterator[tuple[str, str]]:
    """The comments and docstrings of each source file of the product, without what they quote."""
    for name, text in product_sources("*.cc", "*.h", "*.py", "*.sh", "*.proto", "*.ts", "*.tsx"):
        marks = r'(?m)(?:^|\s)#(.*)$|"""((?s:.*?))"""' if name.endswith((".py", ".sh")) else r"(?m)(?:^|\s)//(.*)$|/\*((?s:.*?))\*/"
        said = "\n".join("".join(found) for found in re.findall(marks, text))
        yield name, re.sub(r"`[^`\n]*`|\"[^\"\n]*\"", " ", said)


def literals() -> Iterator[tuple[str, str]]:
    """Texts of four words and more in the sources of the product: messages of programs."""
    for name, text in product_sources("*.cc", "*.h", "*.py"):
        text = re.sub(r'(?m)^\s*#.*$|"""(?s:.*?)"""' if name.endswith(".py") else r"(?m)(?:^|(?<=[ ;]))(?://|#(?!include)).*$", "", text)
        for found in re.findall(r'(?:f?"(?:[^"\\\n]|\\.)*"\s*)+', text):
            said = re.sub(r"\{[^{}]*\}", " ", "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', found)))
            if len(said.split()) >= 4:
                yield name, said


@pytest.mark.parametrize("path", documents(), ids=lambda p: str(p.relative_to(ROOT)))
def test_no_bullet_is_a_page(path: pathlib.Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    items = re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) |\|)", text)
    long = [f"{len(item.split())} words: {' '.join(item.split())[:80]}.." for item in items
            if len(item.split()) >= _LIMIT and not item.startswith("|")]
    assert not long


@pytest.mark.parametrize("path", [p for p in documents() if p.name != "CHANGELOG.md" and "tests" not in p.parts[len(ROOT.parts):]],
                         ids=lambda p: str(p.relative_to(ROOT)))
def test_documents_use_plain_words(path: pathlib.Path) -> None:
    text = prose(path.read_text())
    assert not faults(text) + [f"a date: {m}" for m in DATE.findall(text)]
    assert len(path.read_text().splitlines()) <= 300


@pytest.mark.parametrize("name", ["agents", "notebooks", "sinks"])
def test_a_page_of_another_tool_is_one_screen(name: str) -> None:
    assert len((ROOT / "docs" / f"{name}.md").read_text().splitlines()) <= 30


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 600


def test_the_first_sentence_of_a_file_says_what_it_is() -> None:
    files = dict(openings())
    assert len(files) > 1000
    wrong = [f"{name}: {said}" for name, said in files.items() if RIDDLE.match(said)]
    assert not wrong, "\n".join(wrong)


def test_comments_use_plain_words() -> None:
    said = dict(comments())
    assert len(said) > 1000 and sum(map(len, said.values())) > 1_000_000
    wrong = [f"{name}: {fault}" for name, text in said.items() for fault in faults(text)]
    assert not wrong, "\n".join(wrong)


def test_messages_use_plain_words() -> None:
    wrong = [f"{name}: {fault}" for name, said in literals() for fault in faults(said)]
    assert not wrong, "\n".join(wrong)


def catalogue() -> list[str]:
    """The messages of the command line and the agent, each once."""
    return sorted({" ".join(said.split()) for name, said in literals() if name.startswith(("agent/", "cli/"))})


def test_each_message_was_read() -> None:
    """A new message is read as a user would read it, alone, before `python tests/docs/test_prose.py` adds it to the catalogue."""
    assert CATALOGUE.read_text().splitlines() == catalogue()


def test_one_of_what_is_counted_is_no_plural() -> None:
    """Counted() of common/text/counted.h writes a number with its word."""
    counted = re.compile(r"(?<!of )(?<!and )%d (?:call|difference|fault|file|finding|node|object|payload|rank|record|row|segment|tensor|value)s\b")
    assert [(name, said) for name, said in literals() if name.startswith("cli/") and counted.search(said)] == []


def test_the_page_uses_plain_words() -> None:
    texts = re.findall(r'^  "((?:[^"\\]|\\.)*)":', (ROOT / "web/app/chinese.ts").read_text(), re.MULTILINE)
    assert len(texts) > 150 and [fault for text in texts for fault in faults(text)] == []


@functools.lru_cache(maxsize=None)
def _help(program: str) -> str:
    return subprocess.run([BUILD / "bin" / program, "--dump-help=man"], capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("program", ["rankprobe", "rankprobed"])
def test_help_uses_plain_words(program: str) -> None:
    assert not faults(_help(program).replace("\\-", "-"))


@pytest.mark.parametrize("text", ["the leaf is away", "Nobody reads it", "it is told", "it has gone", "made anew"])
def test_a_riddle_is_found(text: str) -> None:
    assert len(faults(text)) == 1


def test_a_fragment_is_found() -> None:
    assert RIDDLE.match("What a leaf does with it:") and RIDDLE.match("Of a run.") and not RIDDLE.match("Where did a run first go wrong? Looks")


if __name__ == "__main__":
    CATALOGUE.write_text("\n".join(catalogue()) + "\n")
