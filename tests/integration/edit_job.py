# SPDX-License-Identifier: Apache-2.0
"""A training process for test_config_edits.py.

Calls start, one function, stop and step in a loop until the stop file is
there. Writes config.json itself, just before the start() of a step, where the
schedule says so: {"3": "text of the file"}. Each step logs what was recorded.
"""

import argparse
import json
import pathlib
import time

import torch
from rankprobe.pytorch import PrecisionDebugger


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=pathlib.Path, required=True)
    parser.add_argument("--step-log", type=pathlib.Path, required=True)
    parser.add_argument("--stop-file", type=pathlib.Path, required=True)
    parser.add_argument("--schedule", default="{}")
    parser.add_argument("--seconds", type=float, default=0.02, help="of a step, once the schedule is over")
    parser.add_argument("--rank-id", type=int, default=None, help="for start()")
    args = parser.parse_args()
    torch.set_num_threads(1)
    schedule = {int(step): text for step, text in json.loads(args.schedule).items()}
    debugger = PrecisionDebugger(config_path=str(args.config))
    debugger._session.native.wait_connected(60.0)
    # A collector that has seen only steps of microseconds takes a second for thousands of them, so only a job with a
    # schedule has such steps.
    last = max(schedule) + 3 if schedule else -1
    x = torch.ones(8)
    with open(args.step_log, "w", encoding="utf-8") as log:
        print(json.dumps({"run": debugger._session.run, "collector":
                          debugger._session.embedded.address if debugger._session.embedded else None}), file=log, flush=True)
        step = 0
        while not args.stop_file.exists():
            if step in schedule:
                # As editors do: nobody sees half a file.
                fresh = args.config.with_suffix(".new")
                fresh.write_text(schedule[step])
                fresh.rename(args.config)
            PrecisionDebugger.start(rank_id=args.rank_id)
            dumping = debugger._session.recording
            torch.relu(x)
            print(json.dumps({"step": step, "dumping": dumping, "task": debugger.config.task}), file=log, flush=True)
            PrecisionDebugger.stop()
            PrecisionDebugger.step()
            if step > last:
                time.sleep(args.seconds)
            step += 1


if __name__ == "__main__":
    main()
