# SPDX-License-Identifier: Apache-2.0
# C++ unit tests and fuzzers under the address and undefined-behaviour sanitizers; the
# agent for LibTorch against Debian's 1.13.1, rounds of the crash oracle and 1,000
# seeds of the simulation in the release build.
stage_targets=(rankprobed libtorch_test crash_oracle sim)
stage_sanitized=(unit_tests)
stage_test() {
  run_ctest "$RANKPROBE_ROOT/build/asan" -j"${RANKPROBE_JOBS:-$(nproc)}" -E '^(CrashOracle|Sim)\.'
  run_ctest "$RANKPROBE_BUILD_DIR" -j"${RANKPROBE_JOBS:-$(nproc)}" -R '^(libtorch_test|(CrashOracle|Sim)\..*)$'
}
