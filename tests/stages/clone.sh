# SPDX-License-Identifier: Apache-2.0
# README's two commands, as a newcomer types them: in a bare Debian 12, in a clone
# of what is committed, each script installing what it needs. Not part of the default
# run: it builds and tests all of the C++ again, and needs root, network and some 10 GB.
# This machine's compiler cache is lent, unless RANKPROBE_LEND_CCACHE=no.
stage_test() {
  source "$RANKPROBE_ROOT/tests/package/chroot.sh"
  source "$RANKPROBE_ROOT/tests/package/clone_system.sh"
  source "$RANKPROBE_ROOT/tests/package/cases.sh"
  install_packages "$RANKPROBE_ROOT/packaging/packages.txt"

  test_case "a clone in a bare bookworm" clone_into clone
  test_case "quickstart.sh from nothing" in_clone clone /tmp /root/rankprobe/deploy/quickstart.sh
  test_case "quickstart.sh again, from elsewhere" in_clone clone /srv /root/rankprobe/deploy/quickstart.sh
  test_case "quickstart.sh --python" in_clone clone /srv /root/rankprobe/deploy/quickstart.sh --python
  test_case "run.sh --stage unit" in_clone clone / /root/rankprobe/tests/run.sh --stage unit
  parts_print
}
