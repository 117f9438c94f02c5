# SPDX-License-Identifier: Apache-2.0
"""The table of docs/workloads.md out of what runner.py found: python table.py OUT/results.json > docs/workloads.md"""

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
    for key, text in (("only_rankprobe", "entries only in rankprobe"), ("only_msprobe", "entries only in msprobe")):
        if row[key]:
            out.append(f"{len(row[key])} {text}, {row[key][0]} first")
    if row["values_apart"]:
        out.append(f"{len(row['values_apart'])} entries with other values, {row['values_apart'][0]} first")
    if not row["same_steps"]:
        out.append("other steps or ranks")
    return out


def page(rows: list[dict[str, Any]], versions: str) -> str:
    expected = json.loads((HERE / "expected_differences.json").read_text())
    ran = [row for row in rows if "skipped" not in row]
    lines = [
        "# Workloads", "",
        "Public programs with random weights, ten steps each, run four ways: with nobody watching; dumped by rankprobe (statistics, level mix, "
        "the first four steps); dumped by msprobe, alike; and attached by `rankprobe run` without a change, recording steps 1 and 2 only, under a trigger for NaN.", "",
        "*Same bits*: losses, parameters, optimizer state and random state after the last step are those of the run that nobody watched.", "",
        "*Every way*: the same bits also attached and off, at levels L0, L1 and mix in all ten steps, and at level mix with task tensor and with md5, "
        "recording steps 3 to 5 only. It is asked of what is sharded and of one program of each family.", "",
        "Made by `./tests/run.sh --stage workloads`, which fails if a program is changed by being watched, if a trigger fires, if attaching "
        "records anything but those two steps, or if a dump differs from msprobe's in a way that is not listed below.", "",
        "*As msprobe's*: the same entries, and the same values in all of them but the backward entries of calls. Those are counted beside it: they "
        "differ where a call hands on its argument (`x.to(dtype)` that changes nothing) at the border of a module. msprobe puts a node of its own "
        "there, and so changes the last bits of the training; rankprobe puts none, and the entry is of the node that made the tensor.", "",
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
