# SPDX-License-Identifier: Apache-2.0
# Published bugs and their sound twins, asked for without a reference (tests/realbugs/README.md).
stage_targets=(rankprobed rankprobe rankprobe_native rankprobe_analysis_native)
stage_venv=yes
stage_test() {
  count_command "real bugs" "$test_python" "$RANKPROBE_ROOT/tests/realbugs/run.py"
}
