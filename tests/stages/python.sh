# SPDX-License-Identifier: Apache-2.0
# The Python front end and the tools under PyTorch 2.13 of PyPI, and ten of the
# programs that must not notice them (all of them: stage harmless).
stage_targets=(rankprobed rankprobe rankprobe_native rankprobe_analysis_native rankprobe_fake_cuda train_transformer)
stage_venv=yes
stage_test() {
  PYTHONPATH=$RANKPROBE_BUILD_DIR/python \
    run_pytest "$test_python" "$RANKPROBE_ROOT/tests/python" "$RANKPROBE_ROOT/tests/harmless"
}
