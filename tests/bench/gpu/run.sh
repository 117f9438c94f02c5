#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rankprobe on a GPU, one command from a bare clone: the tests that want a CUDA device, then what recording adds to a
# transformer of 24 layers in bfloat16 (eager, compiled, with CUDA graphs), the bytes over PCIe and the waits for the device.
#   ./tests/bench/gpu/run.sh [arguments of gpu.py]
# RANKPROBE_PYTHON: a Python 3.11 with a PyTorch that sees the GPU and with pytest (python3 of the path, if unset).
# RANKPROBE_WHEEL: the wheel to measure in place of a build, for that Python (packaging/wheel/build.sh makes it anywhere): a machine
# with a GPU needs neither a compiler nor packages nor the network. It is unpacked into build/gpu, not installed.
# Where there is no GPU it says so and exits with 77.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../../deploy/lib/common.sh"
python=${RANKPROBE_PYTHON:-python3}
case " $* " in
  *" --device cpu "* | *" --device=cpu "* | *" --help "* | *" -h "*) ;;
  *)
    if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
      if [ -e /dev/nvidiactl ]; then
        say "Not run: there is a GPU, but no PyTorch of $python sees it (set RANKPROBE_PYTHON)"
      else
        say "Not run: there is no GPU here"
      fi
      exit 77
    fi
    ;;
esac
if [ -n "${RANKPROBE_WHEEL:-}" ]; then
  unpacked=$RANKPROBE_ROOT/build/gpu
  rm -rf "$unpacked"
  mkdir -p "$unpacked"
  "$python" -m zipfile -e "$RANKPROBE_WHEEL" "$unpacked"
  chmod +x "$unpacked"/rankprobe/bin/*
  PYTHONPATH=$unpacked RANKPROBE_BUILD_DIR=$unpacked/rankprobe
else
  install_packages
  build rankprobed rankprobe rankprobe_native
  PYTHONPATH=$RANKPROBE_BUILD_DIR/python
fi
export PYTHONPATH RANKPROBE_BUILD_DIR
[ -z "${RANKPROBE_WHEEL:-}" ] || "$python" -c 'import rankprobe._native' 2>/dev/null ||
  die "$RANKPROBE_WHEEL is not for $("$python" -V) on this machine"
case " $* " in
  *" --device cpu "* | *" --device=cpu "* | *" --help "* | *" -h "*) ;;
  *)
    say "Correctness: the tests that want a CUDA device"
    "$python" -m pytest -q -rs -p no:cacheprovider "$RANKPROBE_ROOT/tests/python/test_device.py"
    say "Overhead, bytes over PCIe, waits for the device"
    ;;
esac
exec "$python" "$RANKPROBE_ROOT/tests/bench/gpu/gpu.py" "$@"
