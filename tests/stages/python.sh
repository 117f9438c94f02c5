# SPDX-License-Identifier: Apache-2.0
# Python tests under Debian's python3-torch 1.13.1.
build
RANKPROBE_BUILD_DIR=$RANKPROBE_BUILD_DIR PYTHONPATH=$RANKPROBE_BUILD_DIR/python \
  run_pytest /usr/bin/python3 "$RANKPROBE_ROOT/tests/integration" "$RANKPROBE_ROOT/tests/python"
