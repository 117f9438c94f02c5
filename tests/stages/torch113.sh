# SPDX-License-Identifier: Apache-2.0
# The Python tests under Debian's python3-torch 1.13.1. By default those of hooks,
# names, numbers and exports, which PyTorch's age can change.
stage_targets=(rankprobed rankprobe rankprobe_native rankprobe_analysis_native rankprobe_fake_cuda)
stage_test() {
  local files=("$RANKPROBE_ROOT/tests/python")
  if [ "$selection" = default ]; then
    files=(debugger native exports custom_ops unharmed any_value cannot_record recompute as_msprobe)
    files=("${files[@]/#/$RANKPROBE_ROOT/tests/python/test_}")
    files=("${files[@]/%/.py}")
  fi
  PYTHONPATH=$RANKPROBE_BUILD_DIR/python run_pytest /usr/bin/python3 "${files[@]}"
}
