# SPDX-License-Identifier: Apache-2.0
# Runs ctest and pytest and adds up their JUnit reports. Sourced by
# tests/run.sh and .ci/run.

counts_reset() { tests_passed=0 tests_failed=0 tests_skipped=0 tests_failed_names=; }
# The names of what failed come last: the output before them may be long, or cut.
counts_print() {
  [ -z "$tests_failed_names" ] || sed 's/^/failed: /' <<<"$tests_failed_names"
  printf '%d passed, %d failed, %d skipped\n' "$tests_passed" "$tests_failed" "$tests_skipped"
}

# count_report FILE EXIT_CODE: a runner that failed without a failed test in
# its report counts as one failure.
count_report() {
  local passed=0 failed=0 skipped=0 names
  names=$(mktemp)
  if [ -s "$1" ]; then
    read -r passed failed skipped < <(/usr/bin/python3 "$RANKPROBE_ROOT/tests/lib/count_junit.py" "$1" "$names")
  fi
  if [ "$failed" -eq 0 ] && { [ "$2" -ne 0 ] || [ $((passed + skipped)) -eq 0 ]; }; then
    failed=1
    echo "a runner that ended with $2 and named no test" >"$names"
  fi
  tests_failed_names+=${tests_failed_names:+$'\n'}$(cat "$names")
  tests_failed_names=${tests_failed_names%$'\n'}
  rm -f "$names"
  tests_passed=$((tests_passed + passed))
  tests_failed=$((tests_failed + failed))
  tests_skipped=$((tests_skipped + skipped))
  rm -f "$1"
}

# run_ctest BUILD_DIR [ctest arguments..]: prints failures and the summary.
run_ctest() {
  local dir=$1 report rc=0
  shift
  report=$(mktemp --suffix .xml)
  ctest --test-dir "$dir" --output-on-failure --output-junit "$report" "$@" |
    grep -v -E '^ *[0-9]+/[0-9]+ Test +#[0-9]+: .* Passed|^ *Start +[0-9]+: ' || rc=${PIPESTATUS[0]}
  count_report "$report" "$rc"
}

# run_pytest PYTHON [pytest arguments..]
run_pytest() {
  local python=$1 report rc=0
  shift
  report=$(mktemp --suffix .xml)
  "$python" -m pytest -q -rs -p no:cacheprovider --junitxml "$report" "$@" || rc=$?
  count_report "$report" "$rc"
}
