# SPDX-License-Identifier: Apache-2.0
# Public programs watched by rankprobe, beside the real msprobe (tests/workloads), and runs of public models on several ranks
# against one (test_sharded.py). Not in the default set, which runs five of the programs in stage interop. Packages from PyPI,
# in build/venv-workloads; results in build/workloads/results.json, and
#   build/venv-workloads/bin/python tests/workloads/table.py build/workloads/results.json > tests/workloads/README.md
stage_test() {
  source "$RANKPROBE_ROOT/tests/lib/venv.sh"
  # No torchvision, and so no timm: its package on PyPI is for CUDA.
  make_venv "$RANKPROBE_ROOT/build/venv-workloads" torch==2.13.0 numpy pandas openpyxl tqdm rich pytest mindstudio-probe==26.2.0 \
    transformers==5.23.0 accelerate==1.15.0 peft==0.21.2 lightning==2.6.6 torch-geometric==2.8.1
  build rankprobed rankprobe rankprobe_native rankprobe_analysis_native
  rm -rf "$RANKPROBE_ROOT/build/workloads"
  PYTHONPATH=$RANKPROBE_BUILD_DIR/python RANKPROBE_WORKLOADS=all WORKLOADS_OUT=$RANKPROBE_ROOT/build/workloads \
    run_pytest "$RANKPROBE_ROOT/build/venv-workloads/bin/python" "$RANKPROBE_ROOT/tests/workloads"
}
