# SPDX-License-Identifier: Apache-2.0
# C++ unit tests and fuzzers under the address and undefined-behaviour sanitizers; the
# agent for LibTorch against Debian's 1.13.1 and rounds of the crash oracle in the
# release build, which is what they are about.
stage_targets=(rankprobed libtorch_test crash_oracle)
stage_sanitized=(unit_tests)
stage_test() {
  run_ctest "$RANKPROBE_ROOT/build/asan" -j"${RANKPROBE_JOBS:-$(nproc)}" -E '^CrashOracle'
  run_ctest "$RANKPROBE_BUILD_DIR" -R '^(libtorch_test|CrashOracle\..*)$'
}
