# SPDX-License-Identifier: Apache-2.0
# Programs that people use beside rankprobe, as PyPI has them: a client of MCP, W&B and MLflow offline, TensorBoard, OpenTelemetry,
# and what the extra for notebooks brings. About 720 MB outside of the checkout, installed once; some minutes.
stage_targets=(rankprobed rankprobe rankprobe_native rankprobe_analysis_native)
stage_venv=yes
tools_requirements=(pytest pandas pyarrow matplotlib mcp==2.3.0 wandb==0.31.0 mlflow-skinny==3.17.2 tensorboard==2.21.0 opentelemetry-exporter-otlp==1.45.2)
stage_test() {
  local dir
  dir=${XDG_CACHE_HOME:-$HOME/.cache}/rankprobe/venv-tools-$(printf '%s\n' "${tools_requirements[@]}" | sha256sum | cut -c1-12)
  make_venv "$dir" "${tools_requirements[@]}"
  RANKPROBE_TORCH_PYTHON=$test_python PYTHONPATH=$RANKPROBE_BUILD_DIR/python \
    run_pytest "$dir/bin/python" "$RANKPROBE_ROOT/tests/tools"
}
