# SPDX-License-Identifier: Apache-2.0
# clang-tidy over all C++ sources with every check of .clang-tidy, those that take
# as long as all others too.
stage_targets=(rankprobed rankprobe)
stage_test() {
  count_command clang-tidy python3 "$RANKPROBE_ROOT/tests/lib/tidy.py" --slow-checks
}
