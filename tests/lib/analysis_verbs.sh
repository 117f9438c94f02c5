#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# analysis_verbs.sh RANKPROBE: every verb that reads dumps, over dumps that were
# really recorded (tests/golden/dumps). Fails where one ends otherwise than with
# an answer (0, 1) or a clear refusal (2, 4), as a sanitizer makes it.
set -euo pipefail
rankprobe=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../golden" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export RANKPROBE_COLLECTOR=127.0.0.1:1 ASAN_OPTIONS=exitcode=99
failed=0

ask() {
  local rc=0
  "$rankprobe" "$@" >"$scratch/out" 2>"$scratch/err" || rc=$?
  case $rc in
    0 | 1 | 2 | 4) ;;
    *)
      printf 'exit code %s: rankprobe %s\n' "$rc" "$*"
      tail -n 40 "$scratch/err"
      failed=1
      ;;
  esac
  if grep -q "AddressSanitizer\|runtime error" "$scratch/err"; then
    printf 'a sanitizer speaks: rankprobe %s\n' "$*"
    head -n 40 "$scratch/err"
    failed=1
  fi
}

number=0
for dump in "$here"/dumps/*/step0; do
  number=$((number + 1))
  ask overflow_check -i "$dump" -o "$scratch/overflow" --force
  ask --json overflow_check -i "$dump" -o "$scratch/overflow" --force
  ask diagnose "$dump" --force
done
# Some of each kind: statistics, tensors, digests, two ranks.
for pair in cnn_stat_mix:cnn_stat_L1 cnn_tensor_md5_mix:cnn_tensor_md5_mix cnn_md5_mix:cnn_md5_mix ddp_stat_mix:ddp_stat_mix; do
  target=$here/dumps/${pair%:*}/step0 reference=$here/dumps/${pair#*:}/step0
  ask first-divergence "$target" "$reference" --force
  ask --json first-divergence "$target" "$reference" --force
  ask diagnose "$target" --reference "$reference" --force
  ask config_check "$target" "$reference" --force
  ask compare --target_path "$target" --golden_path "$reference" -o "$scratch/$number" --diff_analyze --force
  number=$((number + 1))
  ask graph_visualize --target_path "$target" --golden_path "$reference" -o "$scratch/$number" --overflow_check --force
  number=$((number + 1))
done
ask replicas "$here/dumps/ddp_stat_mix/step0" --gradients --force
ask --json replicas "$here/dumps/ddp_stat_mix/step0" --force
# A NaN in a module of a long name: its chain of modules is read.
mkdir -p "$scratch/bad/rank0"
cat >"$scratch/bad/rank0/dump.json" <<'JSON'
{"task": "statistics", "level": "mix", "framework": "pytorch", "data": {
 "Torch.log.0.forward": {"input_args": [{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], "Max": 0.0, "Min": 0.0, "Mean": 0.0, "Norm": 0.0, "requires_grad": false}],
  "input_kwargs": {}, "output": [{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], "Max": -Infinity, "Min": -Infinity, "Mean": -Infinity, "Norm": Infinity, "requires_grad": false}]}}}
JSON
cat >"$scratch/bad/rank0/construct.json" <<'JSON'
{"Torch.log.0.forward": "Module.layers.0.inner_attention_block.InnerAttention.forward.0",
 "Module.layers.0.inner_attention_block.InnerAttention.forward.0": "Module.OuterTransformer.forward.0",
 "Module.OuterTransformer.forward.0": null}
JSON
ask overflow_check -i "$scratch/bad" -o "$scratch/bad_out" --force
grep -q "in layers.0.inner_attention_block (InnerAttention)" "$scratch/out" || {
  echo "the module of a call is not named:"
  cat "$scratch/out"
  failed=1
}
tr -d ' \n' <"$scratch"/bad_out/anomaly_analyze_*.json |
  grep -q '"construct_info":\["Module.OuterTransformer.forward.0","Module.layers.0.inner_attention_block.InnerAttention.forward.0","Torch.log.0.forward"\]' || {
  echo "construct_info is not the chain of modules:"
  cat "$scratch"/bad_out/anomaly_analyze_*.json
  failed=1
}
exit "$failed"
