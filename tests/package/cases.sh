# SPDX-License-Identifier: Apache-2.0
# Tests that are shell functions, and the parts of a stage: each ends within a
# time of its own, and what each took is told at the end. Sourced by stages.

case_seconds=${RANKPROBE_CASE_SECONDS:-3600}
part_times=()

# part NAME COMMAND..: COMMAND in this shell; its time is noted.
part() {
  local name=$1 began=$SECONDS
  shift
  "$@"
  part_ends "$name" "$began"
}
part_ends() { part_times+=("$(printf '%5d s  %s' $((SECONDS - $2)) "$1")"); }
parts_print() {
  say "Time by part, load $(cut -d ' ' -f 1-3 /proc/loadavg) on $(nproc) cores"
  printf '%s\n' "${part_times[@]}"
}

# bounded SECONDS COMMAND..: in a process group of its own, which ends when the
# time is over or this shell ends.
bounded() {
  local limit=$1 pid guard rc=0
  shift
  # Job control gives each a group.
  set -m
  (set +m; set -e; "$@") </dev/null &
  pid=$!
  (sleep "$limit" && echo "after $limit s: ended" >&2 && kill -TERM -- -"$pid" && sleep 10 && kill -KILL -- -"$pid") \
    >/dev/null &
  guard=$!
  set +m
  trap 'kill -TERM -- -$pid -$guard 2>/dev/null' EXIT
  wait "$pid" || rc=$?
  trap - EXIT
  # What TERM left of the group (namespaces of in_system ignore it) goes with it.
  kill -KILL -- -"$pid" 2>/dev/null || true
  kill -KILL -- -"$guard" 2>/dev/null || true
  wait "$guard" 2>/dev/null || true
  return $rc
}

# test_case NAME COMMAND..: one passed or failed test of the stage.
test_case() {
  local name=$1 rc=0 began=$SECONDS
  shift
  say "$name"
  # `set -e` would be off inside a condition, and in all that is called there.
  set +e
  bounded "$case_seconds" "$@"
  rc=$?
  set -e
  part_ends "$name" "$began"
  if [ $rc -eq 0 ]; then
    echo "passed: $name"
    tests_passed=$((tests_passed + 1))
  else
    echo "FAILED: $name (exit status $rc)"
    tests_failed=$((tests_failed + 1))
  fi
}
