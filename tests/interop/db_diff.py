#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two .vis.db files row by row: db_diff.py OURS PEER.

Prints the differences that docs/analysis.md does not list; exit code 1 if any.
"""
import json
import re
import sqlite3
import sys

METRIC = {"Max diff", "Min diff", "Mean diff", "L2norm diff", "MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr",
          "NormRelativeErr", "EucDist", "Cosine", "MaxAbsErr"}


def number(text):
    try:
        return float(text.rstrip("%"))
    except (ValueError, AttributeError):
        return None


def same_value(key, ours, peer, row):
    if ours == peer or ours == peer.strip() or (ours.strip("-") == "inf" and peer in ("inf%", "nan%")):
        return True  # 26.2 writes odd infinities
    a, b = number(ours), number(peer)
    if key in METRIC:
        if a is not None and b is not None and abs(a - b) <= 1e-6 * max(1, abs(a), abs(b)):
            return True
        # One rule set here: the peer's graph says N/A against a benchmark of zero and for what is not a number, and
        # lets NaN differ from NaN.
        if key == "MaxRelativeErr" and "Cosine" in row and a is not None and a > 1e6:
            return True  # a benchmark of zero: the peer's graph adds the epsilon of float, its table that of double
        if peer == "N/A" and row.get("dtype") == "int":
            return True  # ranks in src and dst: numbers as in the table
        if peer in ("N/A", "Nan"):
            return ours in ("0", "0.0%", "0.0", "inf", "Diff", "N/A", "Nan")
    return False


def same_rows(ours, peer, where, faults, known):
    ours, peer = json.loads(ours), json.loads(peer)
    if list(ours) != list(peer):
        faults.append(f"{where}: rows {list(ours)} != {list(peer)}")
        return
    for name, row in ours.items():
        other = peer[name]
        if list(row) != list(other):
            faults.append(f"{where} {name}: keys {list(row)} != {list(other)}")
            continue
        text = row.get("Err_message", "")
        zero = "One Thousandth Err Ratio > 0.9" in text or "No bench data" in text or any(other.get(k) == "N/A" and row.get(k) == "inf" for k in METRIC)
        for key, value in row.items():
            if not same_value(key, value, other[key], row):
                if zero and key in ("Result", "Err_message"):
                    known.append(where)
                    continue
                faults.append(f"{where} {name} {key}: {value!r} != {other[key]!r}")


def notes(text):
    """What merge notes say, whatever their words: results of formulas, lists of ranks, names of other calls."""
    return [note.rsplit(" = ", 1)[1] if " = " in note else re.findall(r"\[[\d, ]*\]|Distributed\.\S+", note)
            for note in json.loads(text or "[]")]


def rows(db, table):
    cursor = db.execute(f"select * from {table}")
    names = [d[0] for d in cursor.description]
    return names, {row[0]: dict(zip(names, row)) for row in cursor}


def diff(ours_path, peer_path):
    ours, peer = sqlite3.connect(ours_path), sqlite3.connect(peer_path)
    faults, known = [], []
    schemas = []
    for db in (ours, peer):
        schemas.append(sorted(" ".join((s or n).replace("\n", " ").split()) for n, s in
                              db.execute("select name, sql from sqlite_master")))
    if schemas[0] != schemas[1]:
        faults.append(f"schema: {schemas[0]} != {schemas[1]}")
    names, ours_nodes = rows(ours, "tb_nodes")
    _, peer_nodes = rows(peer, "tb_nodes")
    if list(ours_nodes) != list(peer_nodes):
        missing = [i for i in peer_nodes if i not in ours_nodes][:5]
        extra = [i for i in ours_nodes if i not in peer_nodes][:5]
        faults.append(f"nodes: missing {missing}, extra {extra}, or another order")
    for key, row in ours_nodes.items():
        other = peer_nodes.get(key)
        if other is None:
            continue
        for name in names:
            if name in ("input_data", "output_data"):
                same_rows(row[name], other[name], key, faults, known)
            elif name == "dump_data_dir":
                if (row[name] is None) != (other[name] is None):
                    faults.append(f"{key} {name}: {row[name]!r} != {other[name]!r}")
            elif name == "parallel_merge_info":
                if notes(row[name]) != notes(other[name]):
                    faults.append(f"{key} {name}: {row[name]!r} != {other[name]!r}")
            elif name == "matched_distributed" and other[name] == "{}":
                continue  # batches and keyword roots, which the peer leaves out
            elif name == "precision_index" and row[name] != other[name] and (key in known or "Apis_Between" in key):
                continue
            elif row[name] != other[name]:
                faults.append(f"{key} {name}: {row[name]!r} != {other[name]!r}")
    _, ours_stack = rows(ours, "tb_stack")
    _, peer_stack = rows(peer, "tb_stack")
    for key in peer_stack:
        if ours_stack.get(key) != peer_stack[key]:
            faults.append(f"stack {key}: {str(ours_stack.get(key))[:200]} != {str(peer_stack[key])[:200]}")
    _, ours_config = rows(ours, "tb_config")
    _, peer_config = rows(peer, "tb_config")
    for name, value in peer_config["1"].items():
        mine = ours_config["1"][name]
        if name in ("tool_tip", "node_colors"):  # texts of our own, of the same shape
            value, mine = [v and json.loads(v) for v in (value, mine)]
            value, mine = [sorted(set(v) - {"EucDist"}) if v else v for v in (value, mine)]
        if mine != value:
            faults.append(f"config {name}: {mine!r} != {value!r}")
    return faults, known


if __name__ == "__main__":
    found, listed = diff(sys.argv[1], sys.argv[2])
    print("\n".join(f[:400] for f in found[:30]))
    print(len(found), "differences,", len(set(listed)), "nodes with a listed one")
    sys.exit(1 if found else 0)
