# SPDX-License-Identifier: Apache-2.0
# Runs ctest and pytest and adds up their JUnit reports. Sourced by tests/run.sh.
#
# A test that fails counts as failed. Only one that tests/selection.txt marks as
# `real` (it depends on real time) runs once more, alone, after all others; if it
# passes then, it is named `unsteady` and written to tests/unsteady.tsv.

counts_reset() {
  tests_passed=0 tests_failed=0 tests_skipped=0 tests_failed_names='' tests_unsteady_names=''
  tests_again=()
}
# The names of what failed come last: the output before them may be long, or cut.
counts_print() {
  [ -z "$tests_unsteady_names" ] || sed 's/^/unsteady: /' <<<"$tests_unsteady_names"
  [ -z "$tests_failed_names" ] || sed 's/^/failed: /' <<<"$tests_failed_names"
  printf '%d passed, %d failed, %d skipped\n' "$tests_passed" "$tests_failed" "$tests_skipped"
}

# add_names VARIABLE LINES
add_names() {
  [ -z "$2" ] || printf -v "$1" '%s%s' "${!1:+${!1}$'\n'}" "$2"
}

# count_failure NAME
count_failure() {
  tests_failed=$((tests_failed + 1))
  add_names tests_failed_names "$1"
}

# count_command NAME COMMAND..: a check that is no test runner; it counts only if it fails.
count_command() {
  local name=$1
  shift
  "$@" || count_failure "$name"
}

# count_report REPORT EXIT_CODE RUNNER [count_junit.py's options..]: a runner that
# failed and names no failed test counts as one failure. Sets passed, failed, skipped.
count_report() {
  local report=$1 rc=$2 runner=$3 names
  shift 3
  names=$(mktemp) passed=0 failed=0 skipped=0
  [ ! -s "$report" ] ||
    read -r passed failed skipped < <(/usr/bin/python3 "$RANKPROBE_ROOT/tests/lib/count_junit.py" "$@" "$report" "$names")
  if [ "$failed" -eq 0 ] && [ "$rc" -ne 0 ]; then
    failed=1
    echo "$runner, which ended with $rc and named no test" >"$names"
  fi
  add_names tests_failed_names "$(cat "$names")"
  rm -f "$names" "$report"
  tests_passed=$((tests_passed + passed)) tests_failed=$((tests_failed + failed)) tests_skipped=$((tests_skipped + skipped))
}

# run_ctest BUILD_DIR [ctest arguments..]: prints failures and the summary. The test
# programs write a report each into BUILD_DIR/gtest, by which their tests are counted.
run_ctest() {
  local dir=$1 report rc=0 passed failed skipped
  shift
  report=$(mktemp --suffix .xml)
  rm -rf "$dir/gtest"
  TMPDIR=${RANKPROBE_TEST_TMP:-/tmp} TEST_TMPDIR=${RANKPROBE_TEST_TMP:-/tmp} ctest --test-dir "$dir" --output-on-failure --output-junit "$report" "$@" |
    grep -v -E '^ *[0-9]+/[0-9]+ Test +#[0-9]+: .* Passed|^ *Start +[0-9]+: |^\[ +(OK|RUN) +\]|^\[-+\]' || rc=${PIPESTATUS[0]}
  count_report "$report" "$rc" "ctest in $dir" --gtest "$dir/gtest"
  [ $((passed + failed + skipped)) -gt 0 ] || count_failure "ctest in $dir, which found no test"
}

# run_pytest PYTHON DIRECTORY.. [pytest arguments..]: $selection (default, full or
# all) says which tests, and pytest_shard may hold a --shard. Those in real time run
# one by one, after the others, which share the processors.
pytest_shard=()
run_pytest() {
  local python=$1 count=0 shared=()
  shift
  # The environments of servers have no xdist: their tests are heavy, and run one by one.
  ! "$python" -c 'import xdist' 2>/dev/null || shared=(-n "${RANKPROBE_JOBS:-$(nproc)}" --dist "${RANKPROBE_DIST:-loadfile}")
  pytest_once "$python" "not real" "$@" "${shared[@]}"
  pytest_once "$python" real "$@"
  [ "$count" -gt 0 ] || [ ${#pytest_shard[@]} -gt 0 ] || count_failure "pytest $*, which found no test"
}

# pytest_once PYTHON MARKS [pytest arguments..]: adds to $count.
pytest_once() {
  local python=$1 marks=$2 report failures rc=0 kind name passed failed skipped
  shift 2
  report=$(mktemp --suffix .xml) failures=$(mktemp)
  TMPDIR=${RANKPROBE_TEST_TMP:-/tmp} RANKPROBE_FAILURES=$failures \
    "$python" -m pytest -q -rs --durations=8 --durations-min=5 -p no:cacheprovider --junitxml "$report" "--selection=${selection:-all}" "${pytest_shard[@]}" \
    -m "$marks" "$@" || rc=$?
  # 5: no test of this kind.
  [ "$rc" -ne 5 ] || rc=0
  count_report "$report" "$rc" "pytest -m '$marks' $*"
  count=$((count + passed + failed + skipped))
  while IFS=$'\t' read -r kind name; do
    if [ "$kind" = real ]; then
      tests_again+=("$python|${PYTHONPATH:-}|$name")
    fi
  done <"$failures"
  rm -f "$failures"
}

# run_unsteady_again: the tests in real time that failed, one by one.
run_unsteady_again() {
  local entry python path name line
  [ ${#tests_again[@]} -gt 0 ] || return 0
  # So many are no matter of chance.
  [ ${#tests_again[@]} -le 10 ] || return 0
  say "Once more, alone: ${#tests_again[@]} tests in real time that failed"
  for entry in "${tests_again[@]}"; do
    IFS='|' read -r python path name <<<"$entry"
    # No failure of this run is to be run again by whoever started it.
    if (cd "$RANKPROBE_ROOT/tests" && PYTHONPATH=$path TMPDIR=${RANKPROBE_TEST_TMP:-/tmp} RANKPROBE_FAILURES='' \
      "$python" -m pytest -q -p no:cacheprovider "$name"); then
      tests_failed=$((tests_failed - 1)) tests_passed=$((tests_passed + 1))
      tests_failed_names=$(grep -vxF "$(junit_name "$name")" <<<"$tests_failed_names" || true)
      add_names tests_unsteady_names "$name"
      line=$(printf '%s\t%s\t%s\t%s' "$name" "$(git -C "$RANKPROBE_ROOT" rev-parse --short HEAD 2>/dev/null || true)" \
        "$(date -u +%F)" "$(cut -d ' ' -f 1-3 /proc/loadavg)")
      echo "$line" >>"$RANKPROBE_ROOT/tests/unsteady.tsv"
      echo "tests/unsteady.tsv has a new line; commit it: $line"
    fi
  done
}

# junit_name IDENTIFIER: how JUnit's report names the test python/test_x.py::test_y[z].
junit_name() {
  local file=${1%%::*} test=${1#*::}
  file=${file%.py}
  printf '%s.%s' "${file//\//.}" "${test//::/.}"
}
