# SPDX-License-Identifier: Apache-2.0
"""The table of tests/workloads/README.md out of what runner.py found: python table.py OUT/results.json > tests/workloads/README.md"""

from __future__ import annotations

import json
import os
import pathlib
import platform
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent


def differences(row: dict[str, Any]) -> list[str]:
    """In words; empty where both tools dump the same."""
    if row["faults"]["msprobe"]:
        return [f"msprobe ends with an error: {row['faults']['msprobe'][0][:120]}"]
    out = []
    for key, text in (("only_rankprobe", "only in rankprobe"), ("only_msprobe", "only in msprobe")):
        if row[key]:
            out.append(f"{len(row[key])} {text} ({row[key][0].rpartition('/')[2]} first)")
    if row["values_apart"]:
        out.append(f"{len(row['values_apart'])} with other values ({row['values_apart'][0].rpartition('/')[2]} first)")
    if not row["same_steps"]:
        out.append("other steps or ranks")
    return out


def page(rows: list[dict[str, Any]], versions: str) -> str:
    expected = json.loads((HERE / "expected_differences.json").read_text())
    ran = [row for row in rows if "skipped" not in row]
    lines = [
        "# Workloads", "",
        "Public programs with random weights, ten steps each, run four ways: unrecorded; dumped by rankprobe (statistics, level "
        "mix, the first four steps); dumped by msprobe; and attached by `rankprobe run`, recording steps 1 and 2 under a trigger "
        "for NaN.", "",
        "*Same bits*: losses, parameters, optimizer state and random state after the last step equal those of the unrecorded run.", "",
        "*Every way*: the same also attached and off, at levels L0, L1 and mix in all steps, and at mix with task tensor and md5 "
        "in steps 3 to 5; for sharded programs and one of each family.", "",
        "*As msprobe's*: the same entries and values except backward entries of calls, which are counted beside it: they differ "
        "where a call returns its argument (`x.to(dtype)`) at the border of a module, because msprobe adds a node there.", "",
        "Made by `./tests/run.sh --stage workloads`, which fails if a program changes, a trigger fires, attaching records other "
        "steps, or a dump differs from msprobe's in a way that is not listed below.", "",
        f"Conditions: {versions}.", "",
        "| program | ranks | entries | as msprobe's | gradients of calls apart | same bits: rankprobe, attached | every way | msprobe | attached records |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]

    def same(yes: bool) -> str:
        return "yes" if yes else "no"

    def ways(row: dict[str, Any]) -> str:
        return ", ".join(f"not {way}" for way, found in row["ways"].items() if not found["same_bits"]) or ("yes" if row["ways"] else "-")

    for row in ran:
        apart = differences(row)
        lines.append(f"| {row['name']} | {row['ranks']} | {row['entries']} | {'; '.join(apart).replace('|', ' ') or 'yes'} | "
                     f"{len(row['gradients_of_calls_apart'])} | "
                     f"{same(row['rankprobe_same_bits'])}, {same(row['attached_same_bits'])} | {ways(row)} | {same(row['msprobe_same_bits'])} | "
                     f"{row['attached']['records']} |")
    lines += ["", f"{len(ran)} programs; triggers fired: {sum(len(row['attached']['triggers']) for row in ran)}.", "", "Why they differ:", ""]
    lines += [f"* **{name}**: {reason}" for name, reason in expected.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import importlib.metadata

    names = ["torch", "mindstudio-probe", "transformers", "accelerate", "peft", "lightning", "torch-geometric"]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    print(page(json.loads(pathlib.Path(sys.argv[1]).read_text()),
               f"{versions}; Python {platform.python_version()}, {os.cpu_count()} cores"), end="")
