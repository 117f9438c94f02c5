# SPDX-License-Identifier: Apache-2.0
# The Python front end beside the real msprobe, entry by entry, and public programs
# that are watched.
stage_targets=(rankprobed rankprobe rankprobe_native rankprobe_analysis_native)
stage_venv=yes
stage_test() {
  PYTHONPATH=$RANKPROBE_BUILD_DIR/python \
    run_pytest "$test_python" "$RANKPROBE_ROOT/tests/interop" "$RANKPROBE_ROOT/tests/workloads"
}
