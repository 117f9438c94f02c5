# SPDX-License-Identifier: Apache-2.0
# The C++ agent against the LibTorch inside a pip-installed PyTorch 2.13.0, and
# the Python tests under that PyTorch, but for those that ask the same of any: of
# processes, files and the collector. Installs it once, in build/venv-torch213.
source "$RANKPROBE_ROOT/tests/lib/venv.sh"
make_venv "$RANKPROBE_ROOT/build/venv-torch213" "${TORCH213_REQUIREMENTS[@]}"
torch213_python=$RANKPROBE_ROOT/build/venv-torch213/bin/python
torch213_prefix=$("$torch213_python" -c 'import torch; print(torch.utils.cmake_prefix_path)')
(
  RANKPROBE_BUILD_DIR=$RANKPROBE_ROOT/build/torch213
  RANKPROBE_CMAKE_ARGS=(-B "$RANKPROBE_BUILD_DIR" "-DCMAKE_PREFIX_PATH=$torch213_prefix"
    -DRANKPROBE_BUILD_COLLECTOR=OFF -DRANKPROBE_BUILD_PYTHON=OFF -DRANKPROBE_BUILD_BENCH=OFF)
  build
)
run_ctest "$RANKPROBE_ROOT/build/torch213" -R Libtorch
of_any_pytorch=(clock_jumps collector_missing deployment export gpu_bench image_files install killed_between old_glibc
  private_endings private_orphans query raw_lines soak view_server)
of_any_pytorch=("${of_any_pytorch[@]/#/--ignore=$RANKPROBE_ROOT/tests/python/test_}")
# The Python extension knows no PyTorch ABI: the same build serves both.
build rankprobed rankprobe rankprobe_native rankprobe_analysis_native
RANKPROBE_BUILD_DIR=$RANKPROBE_BUILD_DIR PYTHONPATH=$RANKPROBE_BUILD_DIR/python \
  run_pytest "$torch213_python" "$RANKPROBE_ROOT/tests/python" \
  "${of_any_pytorch[@]/%/.py}"
