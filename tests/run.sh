#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All tests of rankprobe, from a bare clone on Debian 12:
#   ./tests/run.sh            everything
#   ./tests/run.sh --quick    without the stages that need PyPI
#   ./tests/run.sh --stage NAME[,NAME]   some of: unit, python, attack, docs, torch213, view, interop;
#                             only so: tsan, package (wheels, bare systems), clone, containers, vllm (a server), mindspore, scale (a Ceph), workloads
#                             (public programs), and see tests/stages/
# Each stage prints its own output; the last line is 'N passed, N failed, N skipped'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/lib/common.sh"
source "$RANKPROBE_ROOT/tests/lib/counts.sh"

stages=unit,python,attack,docs,torch213,view,interop
while [ $# -gt 0 ]; do
  case $1 in
    --quick) stages=unit,python,attack,docs ;;
    --stage) stages=${2:?--stage needs a name}; shift ;;
    -h | --help) sed -n '3,9p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown option $1 (see --help)" ;;
  esac
  shift
done
IFS=, read -r -a stages <<<"$stages"
for stage in "${stages[@]}"; do
  [ -f "$RANKPROBE_ROOT/tests/stages/$stage.sh" ] || die "no stage named $stage"
done

install_packages
counts_reset
for stage in "${stages[@]}"; do
  say "Stage $stage"
  start=$SECONDS
  source "$RANKPROBE_ROOT/tests/stages/$stage.sh"
  say "Stage $stage took $((SECONDS - start)) s"
done
counts_print
[ "$tests_failed" -eq 0 ]
