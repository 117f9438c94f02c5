# SPDX-License-Identifier: Apache-2.0
"""Callbacks for trainers, one module for each framework (docs/trainers.md). This package does not import the frameworks.

    from rankprobe.integrations.transformers import RankprobeCallback   # Trainer, TRL
    from rankprobe.integrations.lightning import RankprobeCallback
    from rankprobe.integrations.accelerate import watch
    from rankprobe.integrations.deepspeed import watch
    from rankprobe.integrations.loops import watch                      # any other loop

Each is one line in the program. It records nothing, starts no process and writes no file unless recording is requested
by a config_path, RANKPROBE_CONFIG, RANKPROBE_COLLECTOR, `rankprobe run`, or a PrecisionDebugger of the program.
"""
