# SPDX-License-Identifier: Apache-2.0
# Attacks on a real daemon with its real flags; docs/security.md names each.
build rankprobed rankprobe
# The harness has generated stubs named rankprobe.v1, which a PYTHONPATH with the
# package rankprobe would hide.
PYTHONPATH= RANKPROBE_BUILD_DIR=$RANKPROBE_BUILD_DIR run_pytest /usr/bin/python3 "$RANKPROBE_ROOT/tests/attack"
