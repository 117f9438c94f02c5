# Tests that are shell functions. Sourced by stages.

# test_case NAME COMMAND..: one passed or failed test of the stage.
test_case() {
  local name=$1
  shift
  say "$name"
  # In a subshell of its own: `set -e` would be off inside a condition.
  local rc=0
  set +e
  (set -e; "$@")
  rc=$?
  set -e
  if [ $rc -eq 0 ]; then
    echo "passed: $name"
    tests_passed=$((tests_passed + 1))
  else
    echo "FAILED: $name"
    tests_failed=$((tests_failed + 1))
  fi
}
