#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of rankprobe, from a bare clone on Debian 12:
#   ./tests/run.sh                       what must pass: unit tests under sanitizers, each promise with real processes
#   ./tests/run.sh --quick               without the stages that need PyPI
#   ./tests/run.sh --stage NAME[,NAME]   some of: unit, python, torch113, attack, integration, docs, view, interop,
#                                        and others, see tests/stages/; NAME-all: with the tests that the default leaves out
#   ./tests/run.sh --all                 every stage with every test (hours, some 30 GB)
#   ./tests/run.sh --ci                  what .ci/run runs: the default, static checks, clang-tidy, a shard of the rest
# First everything is compiled, then everything is tested. The last line is 'N passed, N failed, N skipped'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/lib/common.sh"
source "$RANKPROBE_ROOT/tests/lib/counts.sh"
source "$RANKPROBE_ROOT/tests/lib/phases.sh"
source "$RANKPROBE_ROOT/tests/lib/venv.sh"

quick=unit,torch113,attack,integration,docs
default=unit,python,torch113,attack,integration,docs,view,interop
all=unit,unit_release,python-all,torch113-all,libtorch213,attack-all,integration-all,docs-all,view-all,interop-all,harmless,realbugs,tools,trainers,workloads,tidy,tsan,package,clone,containers,mindspore,vllm,scale,aarch64
# The parts of --all that a run of CI takes one shard of, and into how many.
sharded=python,integration,view,interop
shards=40
# Seconds after which CI begins no shard.
shard_begins_until=1800

stages=$default ci=
while [ $# -gt 0 ]; do
  case $1 in
    --quick) stages=$quick ;;
    --all) stages=$all ;;
    --ci) ci=yes ;;
    --stage) stages=${2:?--stage needs a name}; shift ;;
    -h | --help) sed -n '3,10p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown option $1 (see --help)" ;;
  esac
  shift
done
IFS=, read -r -a stages <<<"$stages"
for stage in "${stages[@]}"; do
  [ -f "$RANKPROBE_ROOT/tests/stages/${stage%-all}.sh" ] || die "no stage named $stage; see tests/stages/"
done

# load_stage NAME: what the stage's file says. A stage has stage_test, and may have
# the targets that it needs of the release and of the sanitizers' build, the need of
# the tests' virtual environment and a file of Debian packages.
load_stage() {
  stage_targets=() stage_sanitized=() stage_venv='' stage_packages=''
  # A stage of the default run leaves out what tests/selection.txt says; any other has all of its tests.
  case ,$default, in *",$1,"*) selection=default ;; *) selection=all ;; esac
  source "$RANKPROBE_ROOT/tests/stages/${1%-all}.sh"
}

# What the tests write lies in memory where there is enough of it: a collector's
# fdatasync then waits for nobody's disk.
export RANKPROBE_BUILD_DIR
RANKPROBE_SCRATCH=$(mktemp -d)
test_tmp=$RANKPROBE_SCRATCH
if [ "$(df --output=avail -k /dev/shm 2>/dev/null | tail -1)" -ge 8000000 ] 2>/dev/null; then
  test_tmp=$(mktemp -d /dev/shm/rp.XXXX)
fi
tidy=
trap '[ -z "$tidy" ] || kill "$tidy" 2>/dev/null; rm -rf "$RANKPROBE_SCRATCH" "$test_tmp"' EXIT
export RANKPROBE_TEST_TMP=$test_tmp

targets=() sanitized=() needs_venv=''
prepare() {
  local stage
  install_packages
  for stage in "${stages[@]}"; do
    load_stage "$stage"
    targets+=("${stage_targets[@]}")
    sanitized+=("${stage_sanitized[@]}")
    [ -z "$stage_venv" ] || needs_venv=yes
    [ -z "$stage_packages" ] || install_packages "$RANKPROBE_ROOT/$stage_packages"
  done
}

# The environment comes from the network while the compiler has the processors.
build_release() {
  local installing='' log=$RANKPROBE_SCRATCH/venv.log
  if [ -n "$needs_venv" ]; then
    test_venv >"$log" 2>&1 &
    installing=$!
  fi
  [ ${#targets[@]} -eq 0 ] || build "${targets[@]}"
  if [ -n "$installing" ]; then
    wait "$installing" || { cat "$log"; die "the tests' virtual environment could not be installed"; }
    test_venv
  fi
}

build_sanitized() {
  (RANKPROBE_PRESET=asan RANKPROBE_BUILD_DIR=$RANKPROBE_ROOT/build/asan && build "${sanitized[@]}")
}

# static_checks GATE..: in a run of CI. mypy reads PyTorch's types, and so comes when
# the tests' environment is there.
static_checks() { count_command "static checks: $*" "$RANKPROBE_ROOT/tests/lib/gates.sh" "$@"; }

# clang-tidy computes while tests wait: the scheduler gives it a processor only where
# no test wants one. It leaves out the sources that it has not begun after these seconds.
# Its processor time is in the row of the stage in which it ends.
tidy_seconds=1500
begin_tidy() {
  chrt --idle 0 python3 "$RANKPROBE_ROOT/tests/lib/tidy.py" --seconds "$tidy_seconds" >"$RANKPROBE_SCRATCH/tidy.log" 2>&1 &
  tidy=$!
}
end_tidy() {
  wait "$tidy" || count_failure clang-tidy
  tidy=
  cat "$RANKPROBE_SCRATCH/tidy.log"
}

# One of the shards of the tests that the default leaves out: each commit has another.
run_shard() {
  local number stage
  number=$(($(git -C "$RANKPROBE_ROOT" rev-list --count HEAD 2>/dev/null || echo 0) % shards))
  echo "shard $number of $shards of the tests that the default run leaves out"
  for stage in ${sharded//,/ }; do
    load_stage "$stage"
    selection=full pytest_shard=("--shard=$number/$shards")
    stage_test
    pytest_shard=()
  done
}

counts_reset
phase "Packages" prepare
[ -z "$ci" ] || phase "Static checks" static_checks format graph complexity shell ruff tsc eslint page
if [ ${#targets[@]} -gt 0 ] || [ -n "$needs_venv" ]; then phase "Release build" build_release; fi
if [ ${#sanitized[@]} -gt 0 ]; then phase "Sanitizer build" build_sanitized; fi
[ -z "$ci" ] || phase "mypy" static_checks mypy
[ -z "$ci" ] || begin_tidy
for stage in "${stages[@]}"; do
  load_stage "$stage"
  phase "Stage $stage" stage_test
done
if [ -n "$ci" ]; then
  phase "clang-tidy, the rest" end_tidy
  if [ $SECONDS -lt $shard_begins_until ]; then
    phase "A shard of the rest" run_shard
  else
    say "No shard of the rest: $SECONDS s are gone, and CI begins none after $shard_begins_until s"
  fi
fi
run_unsteady_again
phases_print
counts_print
[ "$tests_failed" -eq 0 ]
