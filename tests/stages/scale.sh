# SPDX-License-Identifier: Apache-2.0
# Object stores: the conformance tests and the exports of golden runs over a real
# Ceph gateway, which this stage installs and runs on loopback, and a leaf with its
# readers over it; and what becomes of a leaf when the network between them or the
# gateway fails; a leaf or the root killed in a switch of 1,024 ranks; and that what
# tests/bench/run.sh --only scale measures runs. Not part of the default run, for what
# it installs (64 MB); that its own scripts work is (tests/integration/test_scale_stage.py).
stage_test() {
  source "$RANKPROBE_ROOT/tests/scale/parts.sh"
  install_packages "$RANKPROBE_ROOT/tests/scale/packages.txt"
  build object_store_test sealed_test rankprobed rankprobe train_transformer crash_oracle \
    bench_ingest bench_objects bench_ranks bench_light bench_control
  scale_dir=$(mktemp -d)

  if "$RANKPROBE_ROOT/tests/scale/ceph.sh" up "$scale_dir/ceph" &&
    (source "$scale_dir/ceph/env" && /usr/bin/python3 "$RANKPROBE_ROOT/tests/scale/make_bucket.py" conformance); then
    scale_parts s3 "$RANKPROBE_ROOT/tests/integration/test_object_store.py" "$RANKPROBE_ROOT/tests/integration/test_switch_faults.py" \
      "$RANKPROBE_ROOT/tests/scale"
  else
    count_failure "a Ceph on loopback, which did not start"
  fi
  "$RANKPROBE_ROOT/tests/scale/ceph.sh" down "$scale_dir/ceph"
  rm -rf "$scale_dir"
}
