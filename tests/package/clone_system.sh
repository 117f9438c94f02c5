# SPDX-License-Identifier: Apache-2.0
# A bare Debian 12 with a clone of what is committed, in which a newcomer's scripts
# run. Sourced, after chroot.sh; needs root and network. This machine's compiler
# cache is lent, unless RANKPROBE_LEND_CCACHE=no.

# clone_into NAME: a new system build/chroot/NAME with the clone in /root/rankprobe.
clone_into() {
  local root=$RANKPROBE_ROOT/build/chroot/$1
  bare_system "$1" bookworm --include=ca-certificates
  printf 'deb http://deb.debian.org/debian %s main\n' bookworm bookworm-updates >"$root/etc/apt/sources.list"
  echo 'deb http://deb.debian.org/debian-security bookworm-security main' >>"$root/etc/apt/sources.list"
  git clone -q --no-hardlinks "$RANKPROBE_ROOT" "$root/root/rankprobe"
  git -C "$root/root/rankprobe" log -1 --oneline
}

# in_clone NAME DIRECTORY COMMAND..: nothing of this machine's environment but the
# cache, and how many compilers may run at once.
in_clone() {
  local name=$1 directory=$2
  shift 2
  local in_system_ccache=
  [ "${RANKPROBE_LEND_CCACHE:-yes}" = no ] ||
    in_system_ccache=$(ccache --get-config cache_dir 2>/dev/null || ccache -k cache_dir)
  in_system "$name" env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin RANKPROBE_JOBS="${RANKPROBE_JOBS:-$(nproc)}" \
    bash -c 'cd "$0" && exec "$@"' "$directory" "$@"
}
