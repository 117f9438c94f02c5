# SPDX-License-Identifier: Apache-2.0
# README's two commands, as a newcomer types them: in a bare Debian 12, in a clone
# of what is committed, each script installing what it needs. Not part of the default
# run: it builds and tests all of the C++ again, and needs root, network and some 10 GB.
# This machine's compiler cache is lent, unless RANKPROBE_LEND_CCACHE=no.
stage_test() {
  source "$RANKPROBE_ROOT/tests/package/chroot.sh"
  source "$RANKPROBE_ROOT/tests/package/cases.sh"
  install_packages "$RANKPROBE_ROOT/packaging/packages.txt"

  clone_system() {
    local root=$RANKPROBE_ROOT/build/chroot/clone
    bare_system clone bookworm --include=ca-certificates
    printf 'deb http://deb.debian.org/debian %s main\n' bookworm bookworm-updates >"$root/etc/apt/sources.list"
    echo 'deb http://deb.debian.org/debian-security bookworm-security main' >>"$root/etc/apt/sources.list"
    git clone -q --no-hardlinks "$RANKPROBE_ROOT" "$root/root/rankprobe"
    git -C "$root/root/rankprobe" log -1 --oneline
  }
  # in_clone DIRECTORY COMMAND..: nothing of this machine's environment but the cache.
  in_clone() {
    local directory=$1
    shift
    local in_system_ccache=
    [ "${RANKPROBE_LEND_CCACHE:-yes}" = no ] ||
      in_system_ccache=$(ccache --get-config cache_dir 2>/dev/null || ccache -k cache_dir)
    in_system clone env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
      bash -c 'cd "$0" && exec "$@"' "$directory" "$@"
  }
  test_case "a clone in a bare bookworm" clone_system
  test_case "quickstart.sh from nothing" in_clone /tmp /root/rankprobe/deploy/quickstart.sh
  test_case "quickstart.sh again, from elsewhere" in_clone /srv /root/rankprobe/deploy/quickstart.sh
  test_case "quickstart.sh --python" in_clone /srv /root/rankprobe/deploy/quickstart.sh --python
  test_case "run.sh --stage unit" in_clone / /root/rankprobe/tests/run.sh --stage unit
  parts_print
}
