# SPDX-License-Identifier: Apache-2.0
# The Python front end and the tools under PyTorch 2.13 of PyPI, and ten of the
# programs that must not notice them (all of them: stage harmless).
stage_targets=(rankprobed rankprobe rankprobe_native rankprobe_analysis_native rankprobe_fake_cuda train_transformer)
stage_venv=yes
# The default run ends processes quickly; python-all, interop and the stages of servers end them as users' programs do.
stage_test() {
  RANKPROBE_TEST_QUICK_EXIT=$([ "$selection" != default ] || echo yes) PYTHONPATH=$RANKPROBE_BUILD_DIR/python \
    run_pytest "$test_python" "$RANKPROBE_ROOT/tests/python" "$RANKPROBE_ROOT/tests/harmless"
}
