#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the telling records of an exported dump: show_records.py DUMP_DIR."""

import json
import pathlib
import sys


def telling_entries(data: dict) -> list[str]:
    """One call, its gradient, one module, its gradient, and the gradients of its parameters."""
    chosen = []
    for part, suffix in ((".forward", "."), (".backward", "."), (".forward.", "Module."), (".backward.", "Module."),
                         (".parameters_grad", "Module.")):
        for name, record in data.items():
            is_module = name.startswith("Module.")
            if part not in name or is_module != (suffix == "Module.") or (not is_module and not name.endswith(part)):
                continue
            if part == ".forward" and name.removesuffix("forward") + "backward" not in data:
                continue
            if part == ".backward" and chosen:
                name = chosen[0].removesuffix("forward") + "backward"
                record = data[name]
            leaves = [leaf for values in record.values() if isinstance(values, list) for leaf in values]
            floats = [leaf for leaf in leaves
                      if isinstance(leaf, dict) and len(leaf.get("shape", [])) >= 2 and isinstance(leaf["Max"], float)]
            if len(floats) >= 2 or part == ".parameters_grad":
                chosen.append(name)
                break
    return chosen


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    step = sorted(root.glob("step*"), key=lambda p: int(p.name[4:]))[0]
    rank = sorted(step.iterdir())[0]
    dump = json.loads((rank / "dump.json").read_text())
    print(f"{rank.relative_to(root)}/dump.json: task {dump['task']}, level {dump['level']}, "
          f"{len(dump['data'])} entries")
    for name in telling_entries(dump["data"]):
        print(f"  {name}")
        for section, values in dump["data"][name].items():
            named = values.items() if isinstance(values, dict) else ((None, leaf) for leaf in values)
            for key, leaf in list(named)[:2]:
                leaf = leaf[0] if isinstance(leaf, list) and leaf else leaf
                label = section if key is None else f"{section[:5]}.{key}"
                if isinstance(leaf, dict) and "dtype" in leaf:
                    figures = " ".join(f"{k.lower()} {leaf[k]:.4g}" for k in ("Max", "Min", "Norm")
                                       if isinstance(leaf.get(k), (int, float)))
                    print(f"    {label:<14} {leaf['dtype']} {leaf['shape']} {figures}")
                else:
                    print(f"    {label:<14} {json.dumps(leaf)}")
    payloads = sorted(root.glob("step*/*/dump_tensor_data/*.pt"))
    print(f"{len(payloads)} tensor files" + (f", e.g. {payloads[0].relative_to(root)}" if payloads else ""))
    manifest = json.loads((root / "manifest.json").read_text())
    print(f"manifest.json: {len(manifest.get('files', []))} files, {len(manifest.get('gaps', []))} gaps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
