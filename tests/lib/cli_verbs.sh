#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cli_verbs.sh RANKPROBE RANKPROBED CRASH_ORACLE: every verb of the CLI, over dumps
# that were really recorded (tests/golden/dumps) and over a run that goes on. Fails
# where one ends otherwise than with an answer (0, 1) or a clear refusal (2 to 5), as
# a sanitizer makes it, and where the CLI has a verb that is not asked here.
set -euo pipefail
rankprobe=$1
rankprobed=$2
oracle=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../golden" && pwd)
scratch=$(mktemp -d)
started=()
agent=
# The agent is killed: with SIGTERM it would wait 120 s for a collector that has gone.
trap 'kill -KILL $agent 2>/dev/null; kill "${started[@]}" 2>/dev/null; wait; rm -rf "$scratch"' EXIT
export RANKPROBE_COLLECTOR=127.0.0.1:1 ASAN_OPTIONS=exitcode=99
failed=0
asked=" "
# What is asked in the end with a signal.
during=()

ask() {
  local rc=0
  case $1 in
    config | triggers) asked+="$1 $2 | " ;;
    *) asked+="$1 | " ;;
  esac
  "${during[@]}" "$rankprobe" "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || rc=$?
  case $rc in
    0 | 1 | 2 | 3 | 4 | 5) ;;
    124 | 130) [ ${#during[@]} -gt 0 ] ;;
    *)
      printf 'exit code %s: rankprobe %s\n' "$rc" "$*"
      tail -n 40 "$scratch/err"
      failed=1
      ;;
  esac
  if grep -q "AddressSanitizer\|runtime error" "$scratch/err"; then
    printf 'a sanitizer reports a fault: rankprobe %s\n' "$*"
    head -n 40 "$scratch/err"
    failed=1
  fi
}

number=0
for dump in "$here"/dumps/*/step0; do
  number=$((number + 1))
  ask overflow_check -i "$dump" -o "$scratch/overflow" --force
  ask overflow_check --json -i "$dump" -o "$scratch/overflow" --force
  ask diagnose "$dump" --force
done
# Some of each kind: statistics, tensors, digests, two ranks.
for pair in cnn_stat_mix:cnn_stat_L1 cnn_tensor_md5_mix:cnn_tensor_md5_mix cnn_md5_mix:cnn_md5_mix ddp_stat_mix:ddp_stat_mix; do
  target=$here/dumps/${pair%:*}/step0 reference=$here/dumps/${pair#*:}/step0
  ask first-divergence "$target" "$reference" --force
  ask first-divergence --json "$target" "$reference" --force
  ask diagnose "$target" --reference "$reference" --force
  ask config_check "$target" "$reference" --force
  ask compare --target_path "$target" --golden_path "$reference" -o "$scratch/$number" --diff_analyze --force
  number=$((number + 1))
  ask graph_visualize --target_path "$target" --golden_path "$reference" -o "$scratch/$number" --overflow_check --force
  number=$((number + 1))
done
ask replicas "$here/dumps/ddp_stat_mix/step0" --gradients --force
ask replicas --json "$here/dumps/ddp_stat_mix/step0" --force
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
printf '{"random state": {"numpy": "1"}, "weights": {"w": "11"}}' >"$scratch/bad/rank0/run_card.json"
ask config_check "$scratch/bad" "$scratch/bad" --all --force
ask config_check --json "$scratch/bad" "$scratch/bad" --force
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
# What other programs make: a model of another program, the workers in Python.
ask compare "$here/dumps/ddp_stat_mix/step0" "$here/dumps/ddp_stat_mix/step0" -o "$scratch/tables" --force
ask align "$here/dumps/cnn_stat_mix/step0" "$here/dumps/cnn_stat_mix/step0" --rules vllm-llama --output_path "$scratch/aligned" --force
export RANKPROBE_PYTHON=/bin/true
ask acc_check -api_info "$here/dumps/cnn_stat_mix/step0/rank0/dump.json"
ask run --run x -- true
ask isolate --reference x -- true
ask check golden.json -- true
ask doctor
ask sink webhook
ask mcp
ask merge_result "$scratch/tables" -o "$scratch/merged" -config "$scratch/merge.yaml"
ask config schema
ask schema
ask schema config get
mkdir "$scratch/spool"
ask deliver "$scratch/spool"

# A run that goes on. Whoever waits here waits for what comes, not for a time.
until_answered() {
  for _ in {1..600}; do
    "$@" >"$scratch/out" 2>&1 && return
    sleep 0.1
  done
  echo "no answer: $*"
  cat "$scratch/out" "$scratch"/*.log
  exit 1
}
"$rankprobed" --data-dir "$scratch/data" --export-root "$scratch" --listen 127.0.0.1:0 --port-file "$scratch/port" >"$scratch/rankprobed.log" 2>&1 &
started+=($!)
until_answered grep -q . "$scratch/port"
RANKPROBE_COLLECTOR=127.0.0.1:$(cat "$scratch/port")
"$oracle" --agent --collector "$RANKPROBE_COLLECTOR" --rank 0 --life 0 --state "$scratch/state" --seed 1 --pause-ms 20 --small >"$scratch/agent.log" 2>&1 &
agent=$!
until_answered "$rankprobe" export --run oracle --steps 2 -o "$scratch/step2"
printf '{"task": "statistics", "dump_path": "d", "level": "mix"}' >"$scratch/config.json"
printf '{"flight": {"steps": 4, "level": "mix"}, "rules": [{"name": "nan", "non_finite": {"nan_only": true}}]}' >"$scratch/triggers.json"
ask config set "$scratch/config.json" --run oracle
ask triggers set "$scratch/triggers.json" --run oracle
for verb in runs status "status --run oracle" "events --run oracle" "ledger --run oracle" "query --run oracle" "query --run oracle --rows rank --heat" \
  "query --run oracle --statistic max --csv" "scan --run oracle" "diagnose run:oracle" "diagnose run:oracle@2 run:oracle@3" "explain --run oracle" \
  "config get --run oracle" "triggers get --run oracle" "flight --run oracle" "flag --run oracle x" "export --run oracle --steps 0-2 -o $scratch/exported" \
  "export --run oracle --steps 0-2 --tar $scratch/exported.tar" "disable --run oracle" "enable --run oracle --for-steps 2" "overflow_check run:oracle@2" \
  "first-divergence run:oracle@2 run:oracle@3" "verify" "backup $scratch/backup" "delete --run oracle --steps 0-1"; do
  read -ra words <<<"$verb"
  ask "${words[@]}"
  ask "${words[@]}" --json
done
during=(timeout --signal=INT 2)
ask top --run oracle
ask watch --run oracle
ask view --port 0

paths=$("$rankprobe" --dump-help=bash | sed -n "s/^ *local paths='|\(.*\)|'$/\1/p")
IFS='|' read -ra verbs <<<"$paths"
for verb in "${verbs[@]}"; do
  case $verb in config | triggers) continue ;; esac
  [[ $asked == *" $verb | "* ]] || {
    echo "this script does not ask: rankprobe $verb"
    failed=1
  }
done
exit "$failed"
