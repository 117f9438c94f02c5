# SPDX-License-Identifier: Apache-2.0
# Wall and CPU seconds of the parts of a test run. Sourced by tests/run.sh.

phases=()

# cpu_seconds: sets $cpu to the seconds that this shell and all processes that it
# waited for have computed. Not a subshell, whose own times would be read.
cpu_seconds() {
  local file=$RANKPROBE_SCRATCH/times
  times >"$file"
  cpu=$(awk '{for (i = 1; i <= NF; i++) {split($i, t, /[ms]/); sum += t[1] * 60 + t[2]}} END {printf "%d", sum}' "$file")
}

# phase NAME COMMAND..: runs COMMAND in this shell and adds a row to the table.
phase() {
  local name=$1 wall=$SECONDS cpu before
  shift
  say "$name"
  cpu_seconds
  before=$cpu
  "$@"
  cpu_seconds
  phases+=("$(printf '%-28s %6d %6d' "$name" $((SECONDS - wall)) $((cpu - before)))")
}

phases_print() {
  local cpu
  cpu_seconds
  printf '\n%-28s %6s %6s\n' phase wall_s cpu_s
  printf '%s\n' "${phases[@]}"
  printf '%-28s %6d %6d\n' sum "$SECONDS" "$cpu"
}
