#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Cost of recording in a PyTorch training step: plain, msprobe, rankprobe at
# each level, beside the time to read the distinct tensors once. One command
# from a bare clone; arguments go to overhead.py:
#   ./tests/bench/overhead/run.sh
#   ./tests/bench/overhead/run.sh --models cnn --cases L1,mix --rounds 10
# What it adds, attached and off, to the step of a compiled model; arguments go to compiled.py:
#   ./tests/bench/overhead/run.sh --compiled
# What a gigabyte, a call, a module and a step cost by themselves; arguments go to fit.py:
#   ./tests/bench/overhead/run.sh --fit
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../../deploy/lib/common.sh"
source "$RANKPROBE_ROOT/tests/lib/venv.sh"
install_packages
test_venv
build rankprobed rankprobe rankprobe_native
script=overhead.py
case ${1:-} in
  --compiled | --fit)
    script=${1#--}.py
    shift
    ;;
esac
PYTHONPATH=$RANKPROBE_BUILD_DIR/python exec "$test_python" \
  "$RANKPROBE_ROOT/tests/bench/overhead/$script" "$@"
