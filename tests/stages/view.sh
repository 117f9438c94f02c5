# SPDX-License-Identifier: Apache-2.0
# The pages of `rankprobe view` in Debian's Chromium, before a real collector and a
# training on four ranks. Pictures are kept in build/view.
stage_targets=(rankprobed rankprobe rankprobe_native rankprobe_analysis_native bench_archive)
stage_venv=yes
stage_packages=tests/view/packages.txt
stage_test() {
  PYTHONPATH=$RANKPROBE_BUILD_DIR/python \
    run_pytest "$test_python" "$RANKPROBE_ROOT/tests/view"
}
