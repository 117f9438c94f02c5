# SPDX-License-Identifier: Apache-2.0
# Debian packages in a bare bookworm: install, run, remove. Sourced by tests/stages/package.sh.

debian_lintian() {
  lintian --tag-display-limit 0 -L '>=warning' --fail-on error,warning --allow-root "$RANKPROBE_ROOT/build/debian/"*.changes
}
debian_packages_live() {
  local root=$RANKPROBE_ROOT/build/chroot/debs
  bare_system debs bookworm
  cp "$RANKPROBE_ROOT/build/debian/"*.deb "$root/"
  cp "$RANKPROBE_ROOT/tests/package/debian_inside.sh" "$root/"
  # The libraries are of the versions of this machine: from the same archives.
  printf 'deb http://deb.debian.org/debian bookworm main\ndeb http://deb.debian.org/debian-security bookworm-security main\n' \
    >"$root/etc/apt/sources.list"
  in_system debs bash -eu /debian_inside.sh
}
