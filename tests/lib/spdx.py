#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One line of licence in each source file.

spdx.py names the files that lack it and exits 1; spdx.py --write puts it in, behind a line that starts with #!.
Source is C, C++, Python, proto, shell and cmake. Data of tests and what others wrote are no source of ours.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINE = "SPDX-License-Identifier: Apache-2.0"
_SLASHES = {".cc", ".h", ".inc", ".c", ".proto"}
_HASH = {".py", ".pyi", ".sh", ".cmake", ".sbatch", ".postinst"}
_NO_SOURCE = ("tests/golden/", "tests/fuzz/corpus/")


def comment(path: pathlib.Path, first: bytes) -> bytes | None:
    """Returns the line as a comment in the file's language; None if the file is not source."""
    if path.suffix in _SLASHES:
        return f"// {LINE}\n".encode()
    script = first.startswith(b"#!") and path.suffix in ("", ".py", ".sh")
    if path.suffix in _HASH or path.name == "CMakeLists.txt" or script:
        return f"# {LINE}\n".encode()
    return None


def sources(root: pathlib.Path = ROOT) -> list[pathlib.Path]:
    names = subprocess.run(["git", "-C", root, "ls-files", "-z"], check=True, capture_output=True).stdout.split(b"\0")
    paths = [name.decode() for name in names if name]
    return [root / p for p in paths if not p.startswith(_NO_SOURCE) and (root / p).is_file() and not (root / p).is_symlink()]


def with_line(path: pathlib.Path, text: bytes) -> bytes:
    """Returns the text with the line; the same text if it has the line or the file is not source."""
    lines = text.splitlines(keepends=True)
    line = comment(path, lines[0] if lines else b"")
    if line is None or not text:
        return text
    at = 1 if lines[0].startswith(b"#!") else 0
    if lines[at:at + 1] == [line]:
        return text
    return b"".join(lines[:at] + [line] + lines[at:])


def lacking(root: pathlib.Path = ROOT) -> dict[pathlib.Path, bytes]:
    """Returns the files that lack the line, with their text including the line."""
    out = {}
    for path in sources(root):
        text = path.read_bytes()
        if (new := with_line(path, text)) != text:
            out[path] = new
    return out


def main() -> int:
    write = sys.argv[1:] == ["--write"]
    if sys.argv[1:] and not write:
        print(__doc__, file=sys.stderr)
        return 2
    found = lacking()
    for path, text in found.items():
        print(path.relative_to(ROOT))
        if write:
            path.write_bytes(text)
    return 1 if found and not write else 0


if __name__ == "__main__":
    sys.exit(main())
