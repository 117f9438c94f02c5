# SPDX-License-Identifier: Apache-2.0
# All C++ tests in the release build, as users have it: optimised, without sanitizers.
stage_targets=(all)
stage_test() {
  run_ctest "$RANKPROBE_BUILD_DIR" -j"${RANKPROBE_JOBS:-$(nproc)}"
}
