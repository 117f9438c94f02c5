# SPDX-License-Identifier: Apache-2.0
# Collectors, leaves, a root, stores and LibTorch jobs as processes: kills, faults, switches.
stage_targets=(rankprobed rankprobe rankprobe_native rankprobe_analysis_native train_transformer crash_oracle switch_churn bench_archive)
stage_test() {
  PYTHONPATH=$RANKPROBE_BUILD_DIR/python \
    run_pytest /usr/bin/python3 "$RANKPROBE_ROOT/tests/integration"
}
