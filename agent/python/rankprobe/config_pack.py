# SPDX-License-Identifier: Apache-2.0
"""A pack of msprobe's config_check, of what is known without the program: `rankprobe config_check -d`.

    python -m rankprobe.config_pack [FILE ..] -o PACK.zip

FILE: scripts that start the training (.sh) and files of settings (.yaml). The pack has
the packages of this Python, of its environment what is known to be harmless, and the
settings. Exit status 2: bad usage, or a file that cannot be read.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import pathlib
import re
import sys
import tempfile
import zipfile
from typing import Any, Iterator, Sequence

from rankprobe._harmless import environment, is_harmless
from rankprobe._inputs import Refused, open_input

_MAX_BYTES = 10 << 20
_MAX_VALUES = 100_000
_MAX_DEPTH = 64
_LAUNCH = re.compile(r"(?:msrun|torchrun|python\d? -m torch\.distributed\.launch)\s[^|]*")
_BLOCK = re.compile(r'([A-Za-z0-9_]{1,20}_ARGS)="(.*?)"', re.DOTALL)
# A flag and its value, unless another flag follows.
_FLAG = re.compile(r"--([\w-]+)(?:\s+(?!--)([^\s\\]+))?")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


class PackError(ValueError):
    """An input from which no pack can be made; the text says why."""


def of_script(text: str) -> dict[str, Any]:
    """Returns the options of the first launch command (torchrun, msrun, torch.distributed.launch) of a shell script; an option
    without a value is True."""
    lines = [line.split("#")[0].rstrip() for line in text.splitlines() if not line.lstrip().startswith("#")]
    script = "\n".join(line for line in lines if line) + "\n"
    launch = _LAUNCH.search(script)
    if launch is None:
        return {}
    command = launch.group()
    for name, content in _BLOCK.findall(script):
        command = command.replace(f"${name}", content.replace("\n", " "))
    options: dict[str, Any] = {}
    for name, value in _FLAG.findall(command):
        variable = _VARIABLE.match(value)
        if variable is not None:
            assigned = re.findall(rf"{variable[1]}=\s*(.+)", script)
            value = assigned[-1] if assigned else value
        options[name] = value or True
    return options


def _check_size(value: Any, left: list[int], depth: int) -> None:
    """Raises PackError if the value is too large. Aliases in YAML can expand a small file, and a recursive one without end."""
    left[0] -= 1
    if left[0] < 0 or depth > _MAX_DEPTH:
        raise PackError(f"more than {_MAX_VALUES} values, or nested more than {_MAX_DEPTH} deep")
    for below in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else ():
        _check_size(below, left, depth + 1)


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _leaves(below, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and not all(isinstance(one, (int, float, str, bool, list)) for one in value):
        for index, below in enumerate(value):
            yield from _leaves(below, f"{name}.{index}" if name else str(index))
    elif isinstance(value, (int, float, str, bool, list)):
        yield name, value


def of_yaml(text: str) -> dict[str, Any]:
    """Returns each leaf of the YAML text by its path. Raises PackError."""
    try:
        import yaml
    except ImportError as error:
        raise PackError("PyYAML is needed for .yaml files: pip install pyyaml") from error
    try:
        read = yaml.safe_load(text)
        _check_size(read, [_MAX_VALUES], 0)
        return dict(_leaves(read, ""))
    except PackError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise PackError(f"no YAML: {' '.join(str(error).split())}") from error


_READERS = {".sh": of_script, ".yaml": of_yaml}


def settings_of(files: Sequence[str]) -> dict[str, Any]:
    """Returns the settings of all files. A name with different values in two files has both. Values that may be secret are not
    recorded. Raises PackError."""
    settings: dict[str, Any] = {}
    for file in files:
        path = pathlib.Path(file)
        reader = _READERS.get(path.suffix)
        if reader is None:
            raise PackError(f"{file}: a script (.sh) or settings (.yaml) are expected")
        try:
            with open_input(file, force=False) as opened:
                text = opened.read(_MAX_BYTES + 1)
            if len(text) > _MAX_BYTES:
                raise PackError(f"{file}: more than {_MAX_BYTES} characters")
        except Refused as error:
            raise PackError(str(error).replace("; --force reads it anyway", "")) from error
        except (OSError, UnicodeDecodeError) as error:
            raise PackError(f"{file}: {error}") from error
        try:
            found = reader(text)
        except PackError as error:
            raise PackError(f"{file}: {error}") from error
        for name, value in found.items():
            if name in settings and settings[name] != value:
                value = {"description": "duplicate_value", "values": [settings[name], value]}
            settings[name] = value
    return {name: value if is_harmless(name, value) else "(not recorded)" for name, value in settings.items()}


def members_of(files: Sequence[str]) -> dict[str, str]:
    """Returns the contents of a pack by member name. Raises PackError."""
    settings = settings_of(files)
    packages = "".join(f"{found.metadata['Name']}={found.version}\n" for found in importlib.metadata.distributions() if found.metadata)
    return {"pip": packages, "env": json.dumps(dict(environment(os.environ)), indent=4),
            **({"hyperparameters/hyperparameters_static.json": json.dumps(settings, indent=4, default=str)} if settings else {})}


def write(members: dict[str, str], out: pathlib.Path) -> None:
    """Writes the pack atomically. Raises FileExistsError if `out` exists, and OSError."""
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=".rankprobe-", suffix=".zip")
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as pack:
            for member, content in members.items():
                pack.writestr(member, content)
        os.link(name, out)
    finally:
        os.unlink(name)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="rankprobe config_check -d", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("-o", "--output", default="./config_check_pack.zip")
    arguments = parser.parse_args(argv)
    out = pathlib.Path(arguments.output)
    try:
        if out.suffix != ".zip":
            raise PackError(f"{out}: the name of a pack ends in .zip")
        members = members_of(arguments.files)
        write(members, out)
    except FileExistsError:
        print(f"rankprobe: {out} already exists", file=sys.stderr)
        return 2
    except (PackError, OSError) as error:
        print(f"rankprobe: {error}", file=sys.stderr)
        return 2
    if arguments.files and len(members) < 3:
        print("rankprobe: the files contain neither settings nor a command that starts a training with options "
              "(torchrun, msrun, torch.distributed.launch)",
              file=sys.stderr)
    print(f"{out}: {', '.join(sorted(members))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
