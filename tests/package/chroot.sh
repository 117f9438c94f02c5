# SPDX-License-Identifier: Apache-2.0
# Bare systems to install into, under build/chroot. Sourced; needs root.

# bare_system NAME SUITE [debootstrap options..]: the system, made once and then
# copied to build/chroot/NAME, which is new each time.
bare_system() {
  local name=$1 suite=$2 base
  shift 2
  base=$RANKPROBE_ROOT/build/chroot/base-$name
  if [ ! -f "$base.ready" ]; then
    say "Bare $suite by debootstrap"
    rm -rf "$base"
    mkdir -p "$base"
    debootstrap --variant=minbase "$@" "$suite" "$base" "${RANKPROBE_DEBIAN_MIRROR:-http://deb.debian.org}/debian" \
      >"$base.log" 2>&1 || { tail -5 "$base.log" >&2; die "debootstrap of $suite failed"; }
    # The network is this machine's: its proxies, resolvers and certificates.
    cp -L /etc/resolv.conf /etc/hosts "$base/etc/"
    mkdir -p "$base/etc/ssl/certs"
    cp -L /etc/ssl/certs/ca-certificates.crt "$base/etc/ssl/certs/"
    touch "$base.ready"
  fi
  rm -rf "${RANKPROBE_ROOT:?}/build/chroot/$name"
  cp -a "$base" "$RANKPROBE_ROOT/build/chroot/$name"
}

# in_system NAME COMMAND..: in namespaces of its own, so that nothing outlives it.
# Of this machine's directories it sees in_system_ccache, if that is set.
in_system() {
  local root=$RANKPROBE_ROOT/build/chroot/$1
  shift
  unshare --mount --pid --fork --kill-child sh -c '
    mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" || exit 1
    if [ -n "$1" ]; then mkdir -p "$0/root/.cache/ccache" && mount --bind "$1" "$0/root/.cache/ccache" || exit 1; fi
    shift
    exec chroot "$0" env HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"' "$root" "${in_system_ccache:-}" "$@"
}
