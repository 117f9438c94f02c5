#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two `compare` tables (csv or xlsx) cell by cell: table_diff.py OURS PEER.

Prints the differences that docs/analysis.md does not list; exit code 1 if any.
"""
import csv
import sys


def load(path):
    if path.endswith(".xlsx"):
        import openpyxl

        sheet = openpyxl.load_workbook(path).active
        return [["" if c is None else str(c) for c in row] for row in sheet.iter_rows(values_only=True)]
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


def number(text):
    try:
        return float(text.rstrip("%"))
    except ValueError:
        return None


def same(column, ours, peer, row):
    if ours == peer or ours == peer.strip():
        return True  # 26.2 writes " inf" in its csv
    a, b = number(ours), number(peer)
    if a is not None and b is not None and ours.endswith("%") == peer.endswith("%"):
        # The peer reads numbers with an imprecise parser, and adds in another order.
        return abs(a - b) <= 1e-9 * max(abs(a), abs(b)) or abs(a - b) < 1e-15
    if row["Bench Name"] == "N/A" and column in ("Result", "Err_message"):
        return True  # unmatched is a warning here, never a pass
    if ours == "N/A" and peer == "None" and ("Dtype" in column or "Shape" in column):
        return True  # a null: 26.0 says None, 26.2 says N/A
    if "One Thousandth Err Ratio > 0.9 while the output < 0.6" in row["Err_message"] and column in ("Result", "Err_message"):
        return True  # the peer tests 0.1 where its text says 0.6
    if "in bench that NPU does not have" in row["Err_message"] and column in ("Result", "Err_message"):
        return True  # the peer passes a row whose specials are others than the benchmark's
    if peer == "Nan" and ours == "0.0" and row["Cosine"] == "unsupported":
        return True  # the peer leaves a 0-d NaN against a NaN uncompared
    if column == "NPU_Stack_Info":
        # The peer quotes a frame by what is in it; here a frame is shown as it is.
        plain = [t.replace("\\n", "\n").replace("\\", "").replace('"', "").replace("'", "") for t in (ours, peer)]
        return plain[0] == plain[1]
    return False


def diff(ours_path, peer_path):
    ours, peer = load(ours_path), load(peer_path)
    faults = []
    if ours[0] != peer[0]:
        return [f"header: {ours[0]} != {peer[0]}"]
    if len(ours) != len(peer):
        faults.append(f"{len(ours)} rows != {len(peer)} rows")
    for index, (a, b) in enumerate(zip(ours[1:], peer[1:])):
        row = dict(zip(ours[0], a))
        for column, x, y in zip(ours[0], a, b):
            if not same(column, x, y, row):
                faults.append(f"row {index} {row['NPU Name']} {column}: {x[:120]!r} != {y[:120]!r}")
    return faults


if __name__ == "__main__":
    found = diff(sys.argv[1], sys.argv[2])
    print("\n".join(found[:40]))
    print(len(found), "differences")
    sys.exit(1 if found else 0)
