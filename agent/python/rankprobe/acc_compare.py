# SPDX-License-Identifier: Apache-2.0
"""Comparison of the results of acc_check on two devices: reads two details files and gives a verdict for each call.

    rankprobe acc_check --compare DEVICE_details.csv REFERENCE_details.csv -o OUT

The rules are those of acc_standards: the error of a device may be a limited multiple of the reference's.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sys
import time
from typing import Any

import torch

from rankprobe import acc_standards
from rankprobe._inputs import Refused, open_input, show

RESULT_COLUMNS = ["API Name", "Forward Test Success", "Backward Test Success", "Message"]
DETAIL_COLUMNS = ["API Name", "Dtype", "Standard", "Max Rel Err Ratio", "Mean Rel Err Ratio", "RMSE Ratio",
                  "Small Value Err Ratio", "Err Balance Ratio", "Status", "Message"]
# Metrics of the standards, with their columns in a details file.
BENCHMARK = {"max_rel": "Max Rel Err", "mean_rel": "Mean Rel Err", "rmse": "RMSE", "small_share": "Small Value Err Share",
             "balance": "Rounded Err Balance", "special_share": "Inf/Nan Err Ratio"}
BINARY = {"mismatch_share": "Rel Err Ratio"}
RATIOS = ("max_rel", "mean_rel", "rmse", "small_share", "balance")
_PART = re.compile(r"^(.+)\.(forward|backward)\.output\.\d+$")


class BadFile(Refused):
    """A details file cannot be used; the text is one line with the file and the reason."""


def read_details(path: str, force: bool = False) -> dict[str, dict[str, str]]:
    """Reads a details file. Returns its rows by name. Raises BadFile, and Refused for a file that the permission rule forbids."""
    try:
        with open_input(path, force) as file:
            reader = csv.DictReader(file)
            missing = [c for c in ("API Name", "Dtype", "Status", *BENCHMARK.values()) if c not in (reader.fieldnames or [])]
            if missing:
                raise BadFile(f"{path}: is not a details file of acc_check: it lacks the column {missing[0]}")
            rows: dict[str, dict[str, str]] = {}
            for row in reader:
                name = row["API Name"] or ""
                if not _PART.match(name):
                    raise BadFile(f"{path}: line {reader.line_num}: {name[:200]!r} names no output of a call")
                if rows.setdefault(name, row) is not row:
                    raise BadFile(f"{path}: line {reader.line_num}: {name[:200]} appears twice")
            return rows
    except (OSError, UnicodeDecodeError, csv.Error) as fault:
        raise BadFile(f"{path}: {' '.join(str(fault).split())}") from None


def _metrics(path: str, row: dict[str, str], columns: dict[str, str]) -> dict[str, float]:
    out = {}
    for name, column in columns.items():
        try:
            out[name] = float(row[column])
        except (TypeError, ValueError):
            raise BadFile(f"{path}: {row['API Name']}: {column} is not a number") from None
    return out


def weigh(device: dict[str, str], reference: dict[str, str] | None, paths: tuple[str, str]) -> dict[str, Any]:
    """Judges one output and returns a line of the details. Raises BadFile."""
    line: dict[str, Any] = dict.fromkeys(DETAIL_COLUMNS, "")
    line.update({"API Name": device["API Name"], "Dtype": device["Dtype"], "Status": "SKIP"})
    if reference is None:
        return line | {"Message": "the reference has no such output"}
    if device["Dtype"] != reference["Dtype"]:
        return line | {"Status": "error", "Message": f"{device['Dtype']} against {reference['Dtype']}"}
    for side, row in (("the device", device), ("the reference", reference)):
        if row["Status"] == "SKIP" or not (row.get("Max Rel Err") or row.get("Rel Err Ratio")):
            wrong = side == "the device" and row["Status"] == "error"
            return line | {"Status": "error" if wrong else "SKIP",
                           "Message": f"{side}: {row.get('Message') or 'nothing was measured'}"}
    dtype: Any = getattr(torch, device["Dtype"].removeprefix("torch."), None)
    standard = acc_standards.standard_of(dtype) if isinstance(dtype, torch.dtype) else "binary"
    columns = BINARY if standard == "binary" else BENCHMARK
    op = device["API Name"].split(".")[1]
    found = acc_standards.judge(standard, op, dtype, _metrics(paths[0], device, columns),
                                _metrics(paths[1], reference, columns))
    ratios = ["" if (ratio := found.ratios.get(name)) is None else ratio for name in RATIOS]
    line.update(dict(zip(DETAIL_COLUMNS[3:8], ratios)))
    return line | {"Standard": standard, "Status": found.status, "Message": " ".join(found.faults)}


def _worst(states: list[str]) -> str:
    return "error" if "error" in states else "pass" if "pass" in states else "SKIP"


def compare(device_path: str, reference_path: str, force: bool = False) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """Compares two details files. Returns the result lines and the detail lines, in the order of the device's file. Raises Refused."""
    device, reference = read_details(device_path, force), read_details(reference_path, force)
    details = [weigh(row, reference.get(name), (device_path, reference_path)) for name, row in device.items()]
    calls: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for line in details:
        match = _PART.match(line["API Name"])
        assert match is not None
        calls.setdefault(match.group(1), {}).setdefault(match.group(2), []).append(line)
    results = []
    for name, parts in calls.items():
        states = [_worst([line["Status"] for line in parts.get(side, [])]) for side in ("forward", "backward")]
        why = sorted({line["Message"] for lines in parts.values() for line in lines if line["Message"]})
        results.append([name, *states, "; ".join(why)])
    return results, details


def run(device_path: str, reference_path: str, out_path: str, as_json: bool, force: bool = False) -> int:
    """Compares two files and writes the results. Returns the exit code: 0, 1 if there are errors, 2 for a bad file."""
    try:
        results, details = compare(device_path, reference_path, force)
    except Refused as fault:
        sys.stderr.write(f"rankprobe: {show(fault)}\n")
        return 2
    os.makedirs(out_path, exist_ok=True)
    stamp = time.strftime("%Y%m%d%H%M%S")
    paths = [os.path.join(out_path, f"accuracy_compare_{kind}_{stamp}.csv") for kind in ("result", "details")]
    with open(paths[0], "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([RESULT_COLUMNS, *results])
    with open(paths[1], "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, DETAIL_COLUMNS)
        writer.writeheader()
        writer.writerows(details)
    counts = {"pass": 0, "error": 0, "SKIP": 0}
    for result in results:
        counts[_worst(result[1:3])] += 1
    if as_json:
        print(json.dumps({"result": paths[0], "details": paths[1], **counts}))
    else:
        print(f"{paths[0]}: {counts['pass']} pass, {counts['error']} error, {counts['SKIP']} skipped")
    return 1 if counts["error"] else 0
