#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job, end to end on one machine: build, start the collector, train a
# small transformer on 4 ranks, switch statistics and then tensors on from
# outside while it trains, export the msprobe layout and say what it cost.
#
#   ./deploy/quickstart.sh            C++ (LibTorch) ranks
#   ./deploy/quickstart.sh --python   the same with Python ranks
#   options: --ranks N (4)  --keep (do not remove the work directory's old runs)
#            --out DIR (build/quickstart)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

language=cpp
ranks=4
out=$RANKPROBE_ROOT/build/quickstart
keep=0
while [ $# -gt 0 ]; do
  case $1 in
    --python) language=python ;;
    --ranks) ranks=${2:?--ranks needs a number}; shift ;;
    --out) out=$(realpath -m "${2:?--out needs a directory}"); shift ;;
    --keep) keep=1 ;;
    -h | --help) sed -n '3,11p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown option $1 (see --help)" ;;
  esac
  shift
done
[[ $ranks =~ ^[1-9][0-9]?$ ]] || die "--ranks must be 1..99, not $ranks"

install_packages
say "Building (the first time takes some minutes; ccache makes the next ones short)"
targets=(rankprobed rankprobe)
if [ $language = cpp ]; then targets+=(train_transformer); else targets+=(rankprobe_native); fi
build "${targets[@]}"
bin=$RANKPROBE_BUILD_DIR/bin

[ $keep = 1 ] || rm -rf "$out"
mkdir -p "$out/logs"
rm -f "$out/port" "$out/stop" "$out/store"  # of the run before
run=quickstart-$(date +%H%M%S)
pids=()
collector_pid=
cleanup() {
  touch "$out/stop" 2>/dev/null || true
  local pid
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  if [ -n "$collector_pid" ]; then kill "$collector_pid" 2>/dev/null || true; fi
  wait 2>/dev/null || true
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say "Starting the collector"
"$bin/rankprobed" --listen 127.0.0.1:0 --data-dir "$out/data" --port-file "$out/port" \
  >"$out/logs/collector.out" 2>"$out/logs/collector.log" &
collector_pid=$!
wait_until 20 test -s "$out/port" || { cat "$out/logs/collector.log"; die "the collector did not start"; }
export RANKPROBE_COLLECTOR=127.0.0.1:$(cat "$out/port")
echo "collector pid $collector_pid at $RANKPROBE_COLLECTOR, archive in $out/data"

cat >"$out/config.json" <<'JSON'
{
  "task": "statistics",
  "dump_path": "./dump",
  "rank": [],
  "step": [],
  "level": "mix",
  "dump_enable": false,
  "statistics": {"summary_mode": "statistics"}
}
JSON
cat >"$out/tensors.json" <<'JSON'
{
  "task": "tensor",
  "dump_path": "./dump",
  "rank": [],
  "step": [],
  "level": "L0",
  "dump_enable": false,
  "tensor": {"list": ["attn"]}
}
JSON

say "Training on $ranks ranks ($language), real gloo all-reduce, dump off"
if [ $language = cpp ]; then
  trainer=("$bin/train_transformer")
else
  export PYTHONPATH=$RANKPROBE_BUILD_DIR/python${PYTHONPATH:+:$PYTHONPATH}
  trainer=(/usr/bin/python3 "$RANKPROBE_ROOT/examples/python/train_transformer.py")
fi
for ((r = 0; r < ranks; r++)); do
  "${trainer[@]}" --rank "$r" --world-size "$ranks" --store "$out/store" --steps 100000 \
    --collector "$RANKPROBE_COLLECTOR" --run "$run" --config "$out/config.json" \
    --step-log "$out/logs/steps-$r.jsonl" --stop-file "$out/stop" \
    >"$out/logs/rank-$r.log" 2>&1 &
  pids+=($!)
done

alive() {
  local pid
  for pid in "${pids[@]}"; do
    kill -0 "$pid" 2>/dev/null || { tail -n 5 "$out"/logs/rank-*.log; die "a rank has died"; }
  done
}
steps_done() { if [ -f "$out/logs/steps-0.jsonl" ]; then wc -l <"$out/logs/steps-0.jsonl"; else echo 0; fi; }
steps_at_least() { alive; [ "$(steps_done)" -ge "$1" ]; }
more_steps() { wait_until 240 steps_at_least $(($(steps_done) + $1)) || die "training is too slow"; }
more_steps 12
"$bin/rankprobe" status

say "Statistics on for 3 steps, from outside"
"$bin/rankprobe" enable --run "$run" --for-steps 3
more_steps 6

say "Tensors of the attention modules for 2 steps, ranks 0 and 1 only"
last=$((ranks > 1 ? 1 : 0))
"$bin/rankprobe" enable --run "$run" --config "$out/tensors.json" --ranks "0-$last" --for-steps 2
more_steps 5

say "Off"
"$bin/rankprobe" disable --run "$run"
more_steps 12
"$bin/rankprobe" status
touch "$out/stop"
for pid in "${pids[@]}"; do wait "$pid" || die "a rank ended with an error, see $out/logs"; done
pids=()
"$bin/rankprobe" runs

say "Export"
"$bin/rankprobe" export --run "$run" -o "$out/dump"

say "The tree"
# One rank completely, the others by number: the trees of all are alike.
(cd "$out" && find dump/step* -mindepth 2 -maxdepth 2 -path '*/rank0/*' | sort |
  while read -r path; do
    if [ -d "$path" ]; then echo "$path/ ($(find "$path" -type f | wc -l) files)"; else echo "$path"; fi
  done)
steps_on_disk=$(find "$out/dump" -maxdepth 1 -name 'step*' | wc -l)
[ "$steps_on_disk" -ge 5 ] || die "expected 5 exported steps, found $steps_on_disk"
for d in "$out"/dump/step*; do
  echo "$(basename "$d"): $(ls "$d" | tr '\n' ' ')"
done

say "A few records"
/usr/bin/python3 "$RANKPROBE_ROOT/deploy/lib/show_records.py" "$out/dump"

say "What it cost (seconds a step, median of rank 0)"
/usr/bin/python3 "$RANKPROBE_ROOT/deploy/lib/step_cost.py" "$out/logs/steps-0.jsonl"

echo
echo "The dump is in $out/dump, the logs in $out/logs. Everything started here has been stopped."
