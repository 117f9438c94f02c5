# SPDX-License-Identifier: Apache-2.0
# Object stores: the conformance tests and the exports of golden runs over a real
# Ceph gateway, which this stage installs and runs on loopback, and a leaf with its
# readers over it; and what becomes of a leaf when the network between them or the
# gateway fails; and that what tests/bench/run.sh --only scale measures runs. Not part
# of the default run, for what it installs (64 MB).
install_packages "$RANKPROBE_ROOT/tests/scale/packages.txt"
build object_store_test sealed_test rankprobed rankprobe train_transformer crash_oracle \
  bench_ingest bench_objects bench_ranks
scale_dir=$(mktemp -d)

# scale_part NAME COMMAND..: over the gateway. It makes NAME.xml, a JUnit report; a
# failure that is not in there counts by its exit code.
scale_part() {
  local report=$scale_dir/$1.xml rc=0
  shift
  (source "$scale_dir/ceph/env" && "$@") || rc=$?
  count_report "$report" "$rc"
}
scale_parts() {
  local program
  for program in object_store_test sealed_test; do
    scale_part "$program" env RANKPROBE_TEST_S3_URL=s3://conformance/some/prefix "$RANKPROBE_BUILD_DIR/bin/$program" \
      --gtest_filter='*s3*' --gtest_brief=1 --gtest_output="xml:$scale_dir/$program.xml"
  done
  scale_part pytest env RANKPROBE_SCALE_BUCKET=1 "RANKPROBE_BUILD_DIR=$RANKPROBE_BUILD_DIR" \
    "PYTHONPATH=$RANKPROBE_BUILD_DIR/python:$RANKPROBE_ROOT/tests/lib" \
    /usr/bin/python3 -m pytest -q -rs -p no:cacheprovider --junitxml "$scale_dir/pytest.xml" \
    "$RANKPROBE_ROOT/tests/integration/test_object_store.py" "$RANKPROBE_ROOT/tests/scale"
}
if "$RANKPROBE_ROOT/tests/scale/ceph.sh" up "$scale_dir/ceph" &&
  (source "$scale_dir/ceph/env" && /usr/bin/python3 "$RANKPROBE_ROOT/tests/scale/make_bucket.py" conformance); then
  scale_parts
else
  count_report "$scale_dir/no-store.xml" 1
fi
"$RANKPROBE_ROOT/tests/scale/ceph.sh" down "$scale_dir/ceph"
rm -rf "$scale_dir"
