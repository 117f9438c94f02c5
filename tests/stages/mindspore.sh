# SPDX-License-Identifier: Apache-2.0
# rankprobe.mindspore beside the real msprobe.mindspore, and MindSpore's runs beside PyTorch's: about 3.5 GB in
# build/venv-mindspore (the MindSpore of PyPI, for the CPU, and PyTorch), installed once. Only by
# `tests/run.sh --stage mindspore`. NumPy below 2: MindSpore 2.10 is compiled for NumPy 1.
stage_test() {
  source "$RANKPROBE_ROOT/tests/lib/venv.sh"
  make_venv "$RANKPROBE_ROOT/build/venv-mindspore" 'numpy<2' 'pandas<2.3' 'ml_dtypes<0.5' mindspore==2.10.0 torch==2.13.0 \
    mindstudio-probe==26.2.0 pytest
  build rankprobed rankprobe rankprobe_native rankprobe_analysis_native
  # MindSpore leaves rank_0/ in the directory that it runs in.
  mkdir -p "$RANKPROBE_ROOT/build/mindspore"
  pushd "$RANKPROBE_ROOT/build/mindspore" >/dev/null
  PYTHONPATH=$RANKPROBE_BUILD_DIR/python \
    run_pytest "$RANKPROBE_ROOT/build/venv-mindspore/bin/python" "$RANKPROBE_ROOT/tests/mindspore"
  # Skipped where there is no MindSpore.
  PYTHONPATH=$RANKPROBE_BUILD_DIR/python \
    run_pytest "$RANKPROBE_ROOT/build/venv-mindspore/bin/python" "$RANKPROBE_ROOT/tests/python/test_signals.py" -k mindspores
  popd >/dev/null
}
