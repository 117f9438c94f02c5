# SPDX-License-Identifier: Apache-2.0
"""manifest.json of a dump_path, merged from the manifests of the exports into it.

It describes the run that was exported last and, under `earlier_runs` in the same
format, the files that still exist of the runs before it. Those files are in their
place, or, if they were moved for a later run or a restart, in the `directory` that
the entry names.

Imports only the standard library, because the supervisor of a private collector
runs without the package.
"""

from __future__ import annotations

import json
import os
import pathlib
import socket
import struct
import time
import zlib
from typing import TYPE_CHECKING, Any, Container, Optional

if TYPE_CHECKING or __package__:
    from rankprobe._published import EARLIER
else:  # The supervisor runs without the package and imports modules from its own directory.
    from _published import EARLIER

_SECTIONS = ("files", "gaps", "ledger", "incomplete", "conflicts")
_EARLIER = "earlier_runs"
# Key of an earlier run: the directory below dump_path to which its files were moved; absent if they are in their place.
_DIRECTORY = "directory"
# Prefix of a key that ends with a host name: the time in seconds when that machine wrote the manifest. The clocks of two machines
# are not compared. A job that began on this machine later does not own the entry, even if its run has the same name.
_WRITTEN = "written_unix_s on "
_SCALARS = (str, int, float, type(None))
# Header of a part in a file of parts: bytes compressed, bytes of JSON. StepExporter
# (agent/python/native/session/step_exporter.cc) writes it.
_HEADER = struct.Struct("=QQ")
_MAX_PART_BYTES = 1 << 31


def place_of(entry: dict[str, Any]) -> tuple[str, str]:
    """Returns the place of an entry of a manifest: (step, directory of the rank)."""
    if "path" in entry:
        step, rank, *_ = entry["path"].split("/")
        return step, rank
    return f"step{entry.get('step')}", str(entry.get("rank"))


def merge_manifests(parts: list[dict[str, Any]], own: Optional[Container[str]]) -> dict[str, Any]:
    """Merges manifests, older ones first. If several have entries of a place, the
    last one counts. For directories of ranks that are not in `own`, the first part,
    which is dump_path's manifest, counts. If `own` is None, all are own."""
    out = {key: value for key, value in parts[0].items() if key not in _SECTIONS}
    told: dict[tuple[str, str], dict[str, Any]] = {}
    for part in parts:
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for section in _SECTIONS:
            for entry in part.get(section, []):
                found.setdefault(place_of(entry), {}).setdefault(section, []).append(entry)
        for place, entries in found.items():
            if own is None or place[1] in own or place not in told:
                told[place] = entries
    for section in _SECTIONS:
        out[section] = [entry for place in sorted(told) for entry in told[place].get(section, [])]
    return out


def part_of_losses(run: str, losses: list[tuple[str, int, int, str]]) -> dict[str, Any]:
    """Makes a part that lists losses as an export does (dump_format/manifest.cc). Each loss is (directory of the rank, records,
    payloads, detail)."""
    counts = {"expected_records": None, "stored_records": 0, "expected_payloads": None, "stored_payloads": 0,
              "filtered_calls": 0}
    return {"format": "rankprobe-manifest-1", "run": run, "files": [],
            "gaps": [{"step": -1, "rank": rank, "entry": "", "reason": "PROCESS_EXIT", "records": records,
                      "payloads": payloads, "detail": detail} for rank, records, payloads, detail in losses],
            "ledger": [{"step": -1, "rank": rank, **counts} for rank, *_ in losses], "incomplete": [], "conflicts": []}


def read_parts(path: pathlib.Path) -> list[dict[str, Any]]:
    """Reads the manifests that a process appended to its file. Stops at an
    incomplete one, since the process may have been killed while it wrote it."""
    parts: list[dict[str, Any]] = []
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return parts
    at = 0
    while at + _HEADER.size <= len(data):
        packed, length = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        if packed > len(data) - at or length > _MAX_PART_BYTES:
            break
        try:
            parts.append(json.loads(zlib.decompressobj().decompress(data[at:at + packed], length)))
        except (zlib.error, ValueError):
            break
        at += packed
    return parts


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not all(isinstance(value, _SCALARS) for value in entry.values()):
        return False
    return "path" not in entry or (isinstance(entry["path"], str) and "/" in entry["path"])


def _is_manifest(one: Any) -> bool:
    """Returns whether `one` has the fields of a manifest with the types that the
    functions here rely on. A job must start and end whatever file dump_path has
    under that name."""
    if not isinstance(one, dict) or not isinstance(one.get("run"), str) or not isinstance(one.get(_DIRECTORY, ""), str):
        return False
    return all(isinstance(value, list) and all(map(_is_entry, value)) if key in _SECTIONS else isinstance(value, _SCALARS)
               for key, value in one.items())


def read_runs(root: pathlib.Path) -> list[dict[str, Any]]:
    """Reads the manifests in manifest.json of `root`, one for each run, the last
    run first. Returns none if the file is missing or incomplete, and skips what is
    not a manifest."""
    try:
        there = json.loads((root / "manifest.json").read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return []
    if not isinstance(there, dict):
        return []
    earlier = there.pop(_EARLIER, [])
    return [one for one in [there, *(earlier if isinstance(earlier, list) else [])] if _is_manifest(one)]


def _is_of(one: dict[str, Any], run: str, since: float) -> bool:
    """Returns whether a manifest belongs to this run and to the job that began on this machine at `since`. The job's ranks on other
    machines write to the same file."""
    written = one.get(_WRITTEN + socket.gethostname())
    return one["run"] == run and _DIRECTORY not in one and not (isinstance(written, (int, float)) and written < since)


def read_manifest(root: pathlib.Path, run: str, since: float = 0.0) -> Optional[dict[str, Any]]:
    """Returns the entries of this run in manifest.json of `root`, or None, without files that were moved for another run and without
    entries written before `since`, when the job began (seconds)."""
    of = [one for one in read_runs(root) if _is_of(one, run, since)]
    return merge_manifests(of[::-1], None) if of else None


def named_places(root: pathlib.Path) -> dict[tuple[str, str], str]:
    """Returns the places below `root` that its manifest.json lists files of, with the run of each."""
    return {place_of(file): one["run"] for one in read_runs(root) if _DIRECTORY not in one for file in one.get("files", [])}


def without(manifest: dict[str, Any], places: Container[tuple[str, str]]) -> dict[str, Any]:
    """Returns the manifest without the entries of these places."""
    return {key: [entry for entry in value if place_of(entry) not in places] if key in _SECTIONS else value
            for key, value in manifest.items()}


def _gone(manifest: dict[str, Any], root: pathlib.Path) -> set[tuple[str, str]]:
    """Returns the places of its files that no longer exist below `root`, because a
    user has removed or moved them. Without this the manifest of a dump_path would
    grow with every job."""
    return {place for place in {place_of(file) for file in manifest.get("files", [])} if not root.joinpath(*place).is_dir()}


def _in_earlier(there: list[dict[str, Any]], root: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the entries of `there` for moved files, extended by files that were moved since: `there` lists those in their place,
    and they are found below `earlier/` (_published.py, common/io/published_ranks.h)."""
    told = [without(one, _gone(one, root / one[_DIRECTORY])) for one in there if _DIRECTORY in one]
    claimed = {(one[_DIRECTORY], place_of(file)) for one in told for file in one.get("files", [])}
    for shelf in sorted(path for path in root.glob(f"{EARLIER}/*") if path.is_dir()):
        directory = f"{EARLIER}/{shelf.name}"
        for one in there:
            moved = set() if _DIRECTORY in one else {
                place for place in {place_of(file) for file in one.get("files", [])}
                if (directory, place) not in claimed and shelf.joinpath(*place).is_dir()}
            if not moved:
                continue
            claimed |= {(directory, place) for place in moved}
            into = next((other for other in told if (other["run"], other[_DIRECTORY]) == (one["run"], directory)), None)
            if into is None:
                into = {key: value for key, value in one.items() if key not in _SECTIONS} | {_DIRECTORY: directory}
                told.append(into)
            for section in _SECTIONS:
                into[section] = [*into.get(section, []), *(entry for entry in one.get(section, []) if place_of(entry) in moved)]
    return told


def write_manifest(root: pathlib.Path, manifest: dict[str, Any], scratch: pathlib.Path, since: float = 0.0) -> None:
    """Replaces the entries of the manifest's run in manifest.json of `root`,
    atomically. Entries of other runs, and of jobs of the same name before `since`,
    stay as long as files of them exist. `scratch`: a name on the same file system
    for the unfinished file. Raises OSError."""
    places = {place_of(entry) for section in _SECTIONS for entry in manifest.get(section, [])}
    there = read_runs(root)
    earlier = [without(one, places | _gone(one, root)) for one in there
               if not _is_of(one, manifest["run"], since) and _DIRECTORY not in one]
    others = {key: value for one in there[::-1] if _is_of(one, manifest["run"], since) for key, value in one.items() if key.startswith(_WRITTEN)}
    earlier = [one for one in [*earlier, *_in_earlier(there, root)] if one.get("files")]
    manifest = {**manifest, **others, _WRITTEN + socket.gethostname(): round(time.time(), 3)}
    if earlier:
        manifest[_EARLIER] = earlier
    try:
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o640), "w",
                  encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
        os.replace(scratch, root / "manifest.json")
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
