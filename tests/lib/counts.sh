# SPDX-License-Identifier: Apache-2.0
# Runs ctest and pytest and adds up their JUnit reports. Sourced by
# tests/run.sh and .ci/run.
#
# With RANKPROBE_TRY_AGAIN tests that failed, three at most of a runner, run once
# more after the others. One that passes then is named as unsteady, and counts as passed.

counts_reset() { tests_passed=0 tests_failed=0 tests_skipped=0 tests_failed_names= tests_unsteady_names=; }
# The names of what failed come last: the output before them may be long, or cut.
counts_print() {
  [ -z "$tests_unsteady_names" ] || sed 's/^/unsteady: /' <<<"$tests_unsteady_names"
  [ -z "$tests_failed_names" ] || sed 's/^/failed: /' <<<"$tests_failed_names"
  printf '%d passed, %d failed, %d skipped\n' "$tests_passed" "$tests_failed" "$tests_skipped"
}

# count_report FILE EXIT_CODE [COMMAND..]: a runner that failed without a failed
# test in its report counts as one failure. COMMAND runs what failed again, and
# writes that report in the place of FILE.
count_report() {
  local report=$1 rc=$2 passed=0 failed=0 skipped=0 names unsteady=
  shift 2
  names=$(mktemp)
  read_report "$report"
  if [ -n "${RANKPROBE_TRY_AGAIN:-}" ] && [ $# -gt 0 ] && [ "$failed" -ge 1 ] && [ "$failed" -le 3 ]; then
    local first_passed=$passed first_skipped=$skipped first_failed=$failed first_names again=0
    first_names=$(cat "$names")
    rm -f "$report"
    say "Once more: ${first_names//$'\n'/, }"
    "$@" || again=$?
    read_report "$report"
    # All of them, and no others: otherwise it says nothing of them.
    if [ $((passed + failed)) -eq "$first_failed" ] && { [ "$failed" -gt 0 ] || [ "$again" -eq 0 ]; }; then
      unsteady=$(grep -vxFf "$names" <<<"$first_names") || true
    else
      passed=0 failed=$first_failed
      echo "$first_names" >"$names"
    fi
    passed=$((first_passed + passed)) skipped=$first_skipped
    [ "$failed" -gt 0 ] || rc=0
  fi
  if [ "$failed" -eq 0 ] && { [ "$rc" -ne 0 ] || [ $((passed + skipped)) -eq 0 ]; }; then
    failed=1
    echo "a runner that ended with $rc and named no test" >"$names"
  fi
  add_names tests_failed_names "$(cat "$names")"
  add_names tests_unsteady_names "$unsteady"
  rm -f "$names" "$report"
  tests_passed=$((tests_passed + passed))
  tests_failed=$((tests_failed + failed))
  tests_skipped=$((tests_skipped + skipped))
}

# Of count_report: its counts and the file $names, anew from the report FILE.
read_report() {
  passed=0 failed=0 skipped=0
  : >"$names"
  [ ! -s "$1" ] || read -r passed failed skipped < <(/usr/bin/python3 "$RANKPROBE_ROOT/tests/lib/count_junit.py" "$1" "$names")
}

# add_names VARIABLE LINES
add_names() {
  [ -z "$2" ] || printf -v "$1" '%s%s' "${!1:+${!1}$'\n'}" "$2"
}

# run_ctest BUILD_DIR [ctest arguments..]: prints failures and the summary.
run_ctest() {
  local dir=$1 report rc=0
  shift
  report=$(mktemp --suffix .xml)
  ctest_once "$dir" "$report" "$@" || rc=$?
  count_report "$report" "$rc" ctest_once "$dir" "$report" --rerun-failed
}

# ctest_once BUILD_DIR REPORT [ctest arguments..]
ctest_once() {
  ctest --test-dir "$1" --output-on-failure --output-junit "$2" "${@:3}" |
    grep -v -E '^ *[0-9]+/[0-9]+ Test +#[0-9]+: .* Passed|^ *Start +[0-9]+: ' || return "${PIPESTATUS[0]}"
}

# run_pytest PYTHON [pytest arguments..]
run_pytest() {
  local python=$1 report cache rc=0
  shift
  report=$(mktemp --suffix .xml) cache=$(mktemp -d)
  local run=("$python" -m pytest -q -rs -o "cache_dir=$cache" --junitxml "$report")
  "${run[@]}" "$@" || rc=$?
  count_report "$report" "$rc" "${run[@]}" --last-failed --last-failed-no-failures none "$@"
  rm -rf "$cache"
}
