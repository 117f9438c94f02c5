# SPDX-License-Identifier: Apache-2.0
"""manifest.json of a dump_path, from the manifests of the exports into it.

It speaks of the run that was exported last, and under `earlier_runs` in the same
way of what is still there of the runs before it: in its place, or, of what made
way for a later run or a restart, in the `directory` that it names.

Needs the standard library alone: the supervisor of a private collector runs
without the package.
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
else:  # beside this file, without the package
    from _published import EARLIER

_SECTIONS = ("files", "gaps", "ledger", "incomplete", "conflicts")
_EARLIER = "earlier_runs"
# Of an earlier run: where, below dump_path, its files are. Those that are in their place have none.
_DIRECTORY = "directory"
# When this machine wrote it, seconds, behind the name of the machine: clocks of two machines are not compared. A job that began
# here later has nothing of it, though its run may have the same name.
_WRITTEN = "written_unix_s on "
_SCALARS = (str, int, float, type(None))
# Of a part in a file of parts: bytes packed, bytes as JSON. StepExporter
# (agent/python/native/session/step_exporter.cc) writes it.
_HEADER = struct.Struct("=QQ")
_MAX_PART_BYTES = 1 << 31


def place_of(entry: dict[str, Any]) -> tuple[str, str]:
    """(step, directory of the rank) that an entry of a manifest speaks of."""
    if "path" in entry:
        step, rank, *_ = entry["path"].split("/")
        return step, rank
    return f"step{entry.get('step')}", str(entry.get("rank"))


def merge_manifests(parts: list[dict[str, Any]], own: Optional[Container[str]]) -> dict[str, Any]:
    """One manifest of several, older ones first. Of a place that more than one
    speaks of the last one counts; for places that are not of `own` directories
    the first part, dump_path's own manifest, knows best. None: all are own."""
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
    """A part that speaks of what never came, as an export does (dump_format/manifest.cc). Of each: directory of the
    rank, records, payloads, detail."""
    counts = {"expected_records": None, "stored_records": 0, "expected_payloads": None, "stored_payloads": 0,
              "filtered_calls": 0}
    return {"format": "rankprobe-manifest-1", "run": run, "files": [],
            "gaps": [{"step": -1, "rank": rank, "entry": "", "reason": "PROCESS_EXIT", "records": records,
                      "payloads": payloads, "detail": detail} for rank, records, payloads, detail in losses],
            "ledger": [{"step": -1, "rank": rank, **counts} for rank, *_ in losses], "incomplete": [], "conflicts": []}


def read_parts(path: pathlib.Path) -> list[dict[str, Any]]:
    """The manifests that a process appended to its file, as far as they are
    whole: it may have been killed while it wrote the last one."""
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
    """Of a run, in so far as the functions here go by it: whatever lies in
    dump_path under that name, a job begins and ends."""
    if not isinstance(one, dict) or not isinstance(one.get("run"), str) or not isinstance(one.get(_DIRECTORY, ""), str):
        return False
    return all(isinstance(value, list) and all(map(_is_entry, value)) if key in _SECTIONS else isinstance(value, _SCALARS)
               for key, value in one.items())


def read_runs(root: pathlib.Path) -> list[dict[str, Any]]:
    """The manifests in manifest.json of `root`, one a run, the last run's first;
    none if it is not there or not whole, and without what is not a manifest."""
    try:
        there = json.loads((root / "manifest.json").read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return []
    if not isinstance(there, dict):
        return []
    earlier = there.pop(_EARLIER, [])
    return [one for one in [there, *(earlier if isinstance(earlier, list) else [])] if _is_manifest(one)]


def _is_of(one: dict[str, Any], run: str, since: float) -> bool:
    """Of this run and of the job that began here then: its ranks on other machines write there, too."""
    written = one.get(_WRITTEN + socket.gethostname())
    return one["run"] == run and _DIRECTORY not in one and not (isinstance(written, (int, float)) and written < since)


def read_manifest(root: pathlib.Path, run: str, since: float = 0.0) -> Optional[dict[str, Any]]:
    """What manifest.json of `root` says of this run, if it does, but for what made way for another, and for what was written
    before the job began."""
    of = [one for one in read_runs(root) if _is_of(one, run, since)]
    return merge_manifests(of[::-1], None) if of else None


def named_places(root: pathlib.Path) -> dict[tuple[str, str], str]:
    """Directories of ranks below `root` that its manifest.json has files of, and the run of each."""
    return {place_of(file): one["run"] for one in read_runs(root) if _DIRECTORY not in one for file in one.get("files", [])}


def without(manifest: dict[str, Any], places: Container[tuple[str, str]]) -> dict[str, Any]:
    """The manifest but for these places."""
    return {key: [entry for entry in value if place_of(entry) not in places] if key in _SECTIONS else value
            for key, value in manifest.items()}


def _gone(manifest: dict[str, Any], root: pathlib.Path) -> set[tuple[str, str]]:
    """Places of its files that are not there any more: a user has removed or
    moved them. Else the manifest of a dump_path would grow with every job. `root`:
    what they are below."""
    return {place for place in {place_of(file) for file in manifest.get("files", [])} if not root.joinpath(*place).is_dir()}


def _in_earlier(there: list[dict[str, Any]], root: pathlib.Path) -> list[dict[str, Any]]:
    """Those of `there` that speak of what made way, and more of them for what has since: it was in its place by what `there`
    says (_published.py, common/io/published_ranks.h)."""
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
    """Replaces what manifest.json of `root` says of the manifest's run, at once;
    what other runs left there, and jobs of its name before `since`, stays in it, as long as there are files of the
    run. `scratch`: a name on the same file system for what is not finished yet."""
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
