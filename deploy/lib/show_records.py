#!/usr/bin/env python3
"""Prints the first records of an exported dump: show_records.py DUMP_DIR."""

import json
import pathlib
import sys


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    step = sorted(root.glob("step*"), key=lambda p: int(p.name[4:]))[0]
    rank = sorted(step.iterdir())[0]
    dump = json.loads((rank / "dump.json").read_text())
    print(f"{rank.relative_to(root)}/dump.json: task {dump['task']}, level {dump['level']}, "
          f"{len(dump['data'])} entries")
    for name, record in list(dump["data"].items())[:4]:
        print(f"  {name}")
        for section, values in record.items():
            leaves = values if isinstance(values, list) else list(values.values())
            for leaf in leaves[:2]:
                if isinstance(leaf, dict) and "dtype" in leaf:
                    print(f"    {section:<12} {leaf['dtype']} {leaf['shape']} max {leaf.get('Max')} "
                          f"min {leaf.get('Min')} norm {leaf.get('Norm')}")
                else:
                    print(f"    {section:<12} {json.dumps(leaf)}")
    payloads = sorted(root.glob("step*/*/dump_tensor_data/*.pt"))
    print(f"{len(payloads)} tensor files" + (f", e.g. {payloads[0].relative_to(root)}" if payloads else ""))
    manifest = json.loads((root / "manifest.json").read_text())
    print(f"manifest.json: {len(manifest.get('files', []))} files, {len(manifest.get('gaps', []))} gaps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
