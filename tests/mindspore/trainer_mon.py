# SPDX-License-Identifier: Apache-2.0
"""monitored.py's mint_adam under the real msprobe.mindspore.TrainerMon: trainer_mon.py CONFIG OUT; its csv files go to
MONITOR_OUTPUT_DIR, and OUT is that of monitored.py."""

from __future__ import annotations

import json
import sys

from monitored import Training
from msprobe.mindspore import TrainerMon
from scenario import replace_missing_kernel

replace_missing_kernel()
training = Training("mint_adam", None)
TrainerMon(sys.argv[1], params_have_main_grad=False).set_monitor(training.net, training.optimizer, grad_acc_steps=1)
training.run()
with open(sys.argv[2], "w", encoding="utf-8") as file:
    json.dump({"truth": training.truth, "state": training.everything()}, file)
