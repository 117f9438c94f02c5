# SPDX-License-Identifier: Apache-2.0
# Parts of the scale stage, over a store that exists. Sourced behind
# deploy/lib/common.sh and tests/lib/counts.sh by tests/stages/scale.sh, and by
# tests/integration/test_scale_stage.py, where a directory is the store.

# scale_part NAME COMMAND..: with the store's environment. It makes
# $scale_dir/NAME.xml, a JUnit report; a failure that is not in there counts by its
# exit code.
scale_part() {
  local name=$1 report=$scale_dir/$1.xml rc=0 passed failed skipped
  shift
  (if [ -e "$scale_dir/ceph/env" ]; then source "$scale_dir/ceph/env"; fi && "$@") || rc=$?
  count_report "$report" "$rc" "$name"
  [ $((passed + failed + skipped)) -gt 0 ] || count_failure "$name, which found no test"
}

# scale_parts KIND PYTEST..: KIND is the store's name in the tests' names, s3 or
# directory.
scale_parts() {
  local program kind=$1 s3=()
  shift
  [ "$kind" != s3 ] || s3=(RANKPROBE_TEST_S3_URL=s3://conformance/some/prefix RANKPROBE_SCALE_BUCKET=conformance)
  for program in object_store_test sealed_test; do
    scale_part "$program" env "${s3[@]}" "$RANKPROBE_BUILD_DIR/bin/$program" \
      --gtest_filter="*/*$kind*" --gtest_brief=1 --gtest_output="xml:$scale_dir/$program.xml"
  done
  scale_part pytest env "${s3[@]}" "RANKPROBE_BUILD_DIR=$RANKPROBE_BUILD_DIR" \
    "PYTHONPATH=$RANKPROBE_BUILD_DIR/python:$RANKPROBE_ROOT/tests/lib" \
    /usr/bin/python3 -m pytest -q -rs -p no:cacheprovider --junitxml "$scale_dir/pytest.xml" "$@"
}
