# SPDX-License-Identifier: Apache-2.0
# Documents, help, man pages and completion against the tree and the programs;
# what the walkthroughs tell to type is typed.
stage_targets=(rankprobed rankprobe rankprobe_native rankprobe_analysis_native rankprobe_manual)
stage_test() {
  PYTHONPATH=$RANKPROBE_BUILD_DIR/python \
    run_pytest /usr/bin/python3 "$RANKPROBE_ROOT/tests/docs"
}
