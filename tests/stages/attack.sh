# SPDX-License-Identifier: Apache-2.0
# Attacks on a real daemon with its real flags; docs/security.md names each.
stage_targets=(rankprobed rankprobe)
stage_test() {
  # The harness has generated stubs named rankprobe.v1, which a PYTHONPATH with the
  # package rankprobe would hide.
  # Most of these tests wait for deadlines of their own daemon, so twice as many run at a time as there are processors.
  PYTHONPATH='' RANKPROBE_JOBS=${RANKPROBE_JOBS:-$((2 * $(nproc)))} RANKPROBE_DIST=load \
    run_pytest /usr/bin/python3 "$RANKPROBE_ROOT/tests/attack"
}
