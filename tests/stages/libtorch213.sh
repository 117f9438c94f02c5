# SPDX-License-Identifier: Apache-2.0
# The C++ agent against the LibTorch inside PyTorch 2.13 from PyPI.
stage_venv=yes
stage_test() {
  local prefix
  prefix=$("$test_python" -c 'import torch; print(torch.utils.cmake_prefix_path)')
  (
    RANKPROBE_BUILD_DIR=$RANKPROBE_ROOT/build/torch213
    RANKPROBE_CMAKE_ARGS=(-B "$RANKPROBE_BUILD_DIR" "-DCMAKE_PREFIX_PATH=$prefix"
      -DRANKPROBE_BUILD_COLLECTOR=OFF -DRANKPROBE_BUILD_PYTHON=OFF -DRANKPROBE_BUILD_BENCH=OFF)
    build libtorch_test
  )
  run_ctest "$RANKPROBE_ROOT/build/torch213" -R '^libtorch_test$'
}
