# SPDX-License-Identifier: Apache-2.0
"""Man pages and completions: written by the programs, read by the tools that are to read them."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import pytest

from conftest import BUILD

PAGES = [("rankprobe", 1), ("rankprobed", 8)]


def _written(program: str, form: str) -> str:
    return subprocess.run([BUILD / "bin" / program, f"--dump-help={form}"], capture_output=True, text=True, timeout=60,
                          check=True).stdout


def _verbs() -> list[str]:
    out = subprocess.run([BUILD / "bin" / "rankprobe", "--help"], capture_output=True, text=True, timeout=60,
                         check=True).stdout
    return re.findall(r"^  ([a-z][a-z_-]+) ", out[:out.index("Options of every command")], re.MULTILINE)


@pytest.mark.parametrize("program, section", PAGES)
def test_man_page_is_clean(program: str, section: int, tmp_path: pathlib.Path) -> None:
    page = tmp_path / f"{program}.{section}"
    page.write_text(_written(program, "man"))
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", str(page)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""
    text = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
    for title in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO"):
        assert re.search(rf"^{title}$", text, re.MULTILINE), title
    if shutil.which("lexgrog"):  # what apropos and whatis read
        found = subprocess.run(["lexgrog", str(page)], capture_output=True, text=True, timeout=60)
        assert found.returncode == 0 and f"{program} - " in found.stdout


def test_man_page_has_every_verb() -> None:
    page = _written("rankprobe", "man").replace("\\-", "-")
    verbs = _verbs()
    assert len(verbs) > 15
    for verb in verbs:
        assert re.search(rf"^\\fB{verb}( [a-z]+)?\\fR", page, re.MULTILINE), verb
    assert "\\fBtriggers set\\fR" in page and "\\fB-tp\\fR" in page


def _completed(program: str, line: str) -> list[str]:
    """What bash offers at the end of `line`."""
    words = line.split(" ")
    script = (_written(program, "bash") + f"""
COMP_WORDS=({' '.join(repr(w) for w in words)})
COMP_CWORD={len(words) - 1}
_{program}
printf '%s\\n' "${{COMPREPLY[@]}}"
""")
    done = subprocess.run(["bash", "--norc", "-u", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_bash_offers_verbs_flags_and_values() -> None:
    assert set(_verbs()) <= set(_completed("rankprobe", "rankprobe "))
    assert _completed("rankprobe", "rankprobe first") == ["first-divergence"]
    assert _completed("rankprobe", "rankprobe --json exp") == ["explain", "export"] or set(
        _completed("rankprobe", "rankprobe --json exp")) == {"explain", "export"}
    assert set(_completed("rankprobe", "rankprobe config ")) >= {"get", "set"}
    assert _completed("rankprobe", "rankprobe config set --at") == ["--at-step"]
    assert _completed("rankprobe", "rankprobe status --st") == ["--steps"]
    assert _completed("rankprobe", "rankprobe status --coll") == ["--collector"]
    assert set(_completed("rankprobe", "rankprobe graph_visualize --file_type ")) == {"db", "json"}
    assert _completed("rankprobe", "rankprobe export --output ") == [], "a value: files"
    assert _completed("rankprobe", "rankprobe run --as") == ["--as-msprobe"]
    assert set(_completed("rankprobe", "rankprobe run --on-collector-missing ")) == {"fail", "spool", "ignore"}
    assert _completed("rankprobe", "rankprobe acc_check --white") == ["--white_list"]
    assert "-api_info" in _completed("rankprobe", "rankprobe acc_check -")
    assert set(_completed("rankprobe", "rankprobe diagnose --ref")) == {"--reference", "--reference-job", "--reference_request"}
    assert _completed("rankprobe", "rankprobe first-divergence --gol") == ["--golden_path"]
    assert _completed("rankprobed", "rankprobed --data") == ["--data-dir"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("program", ["rankprobe", "rankprobed"])
def test_completion_is_legal(program: str, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    form = _written(program, shell)
    done = subprocess.run([shell, "-n"], input=form, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.parametrize("words", [["bogus", "--help"], ["--help", "bogus"], ["config", "bogus", "--help"], ["bogus"],
                                   ["--dump-help=html"]])
def test_what_is_not_there_has_no_help(words: list[str]) -> None:
    done = subprocess.run([BUILD / "bin" / "rankprobe", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    assert ("bogus" in done.stderr or "html" in done.stderr) and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [["--help"], ["status", "--help"], ["config", "--help"], ["config", "get", "--help"],
                                   ["graph_visualize", "-tp", "x", "--help"]])
def test_help_is_a_success(words: list[str]) -> None:
    done = subprocess.run([BUILD / "bin" / "rankprobe", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "" and "Usage: rankprobe" in done.stdout
