# SPDX-License-Identifier: Apache-2.0
# Small programs, each for a public report on tools that watch PyTorch (tests/harmless/programs.py), bit by bit with and without
# rankprobe: all of them in all modes. Not in the default set, where stage python runs ten.
stage_targets=(rankprobed rankprobe rankprobe_native rankprobe_analysis_native)
stage_venv=yes
stage_test() {
  PYTHONPATH=$RANKPROBE_BUILD_DIR/python RANKPROBE_HARMLESS=all \
    run_pytest "$test_python" "$RANKPROBE_ROOT/tests/harmless"
}
