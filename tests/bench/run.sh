#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the benchmarks and prints the table of budgets, a line each:
#   name value limit met|missed
# From a bare clone on Debian 12.
#   ./tests/bench/run.sh                       everything
#   ./tests/bench/run.sh --only store,ingest   some of: kernels, agent, store,
#                                              ingest, steps, dedup, export, export_small, ranks
#   ./tests/bench/run.sh --only analysis       beside msprobe (RANKPROBE_MSPROBE, or that of
#                                              the interop stage)
#   ./tests/bench/run.sh --only archive        a run of 1,024 ranks x 10,000 steps
#                                              (--archive RANKS,STEPS,CALLS: a smaller one)
#   ./tests/bench/run.sh --only scale          leaves, their store and their root (--scale
#                                              ingest,two,export,switch,memory,control,sessions: some;
#                                              control: simulated ranks)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib/common.sh"
case ${1:-} in
  -h | --help) sed -n '3,15p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
install_packages
build rankprobed rankprobe train_transformer common_bench runtime_bench store_bench \
  bench_null_sink bench_ingest bench_archive bench_objects bench_query bench_ranks bench_light bench_control bench_torch bench_steps
say "Budgets: name value limit met|missed"
RANKPROBE_BUILD_DIR=$RANKPROBE_BUILD_DIR exec python3 "$RANKPROBE_ROOT/tests/bench/end_to_end.py" "$@"
