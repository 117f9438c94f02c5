#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Wheels that carry all they need but the C library, in build/wheel/dist:
#   packaging/wheel/build.sh [PYTHON..]     (default: python3.11)
# For Debian 12. A wheel serves one Python version: give the interpreter of each,
# by its full path where pyenv is in use. RANKPROBE_GLIBC=2.28 is the oldest C library
# they run with; PyTorch's own wheels ask for the same. Installs the Debian packages
# that are missing (as root, or by sudo), or names them. Needs network the first time,
# for packages, Debian's sources and tools from PyPI.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib/common.sh"
source "$RANKPROBE_ROOT/packaging/wheel/tools.sh"
glibc=${RANKPROBE_GLIBC:-2.28}
work=$RANKPROBE_ROOT/build/wheel
here=$RANKPROBE_ROOT/packaging/wheel
[ $# -gt 0 ] || set -- python3.11

# Reports before the build begins what would stop it after minutes.
grep -qx VERSION_CODENAME=bookworm /etc/os-release ||
  die "this is not Debian 12 (bookworm), whose archives and sources the wheel is made of; a container or chroot of it does"
for python in "$@"; do
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
    [ "$python" = python3.11 ] || # comes with the packages
    die "$python: not a Python of 3.10 or later that runs; give the full path of one (with its venv module and headers)"
done
install_packages "$RANKPROBE_ROOT/deploy/packages.txt" "$here/packages.txt"

wheel_tools "$work/tools" "${WHEEL_TOOLS[@]}"
"$here/static_libraries.sh"
say "Licences and symbols of glibc $glibc"
"$here/notices.sh" "$work/static/THIRD_PARTY_NOTICES"
"$here/glibc_stubs.sh" "$work/tools/bin/python" "$glibc" "$work/glibc-$glibc"
mkdir -p "$work/raw" "$work/dist"
export CCACHE_BASEDIR=$RANKPROBE_ROOT CCACHE_NOHASHDIR=1
for python in "$@"; do
  version=$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
  RANKPROBE_PYTHON=$python wheel_tools "$work/python$version" "${WHEEL_BUILD_REQUIREMENTS[@]}"
  log=$work/cp$version.log
  say "Wheel for Python ${version/3/3.}, glibc $glibc: compiling (many minutes the first time; progress: tail -f $log)"
  rm -f "$work/raw/"*"-cp$version-"* "$work/dist/"*"-cp$version-"*
  # As deep below the root as build/release, so that ccache knows the objects.
  CMAKE_BUILD_PARALLEL_LEVEL=${RANKPROBE_JOBS:-$(nproc)} \
    "$work/python$version/bin/python" -m pip wheel -v --no-input --no-deps --no-build-isolation \
    -w "$work/raw" -C "build-dir=$RANKPROBE_ROOT/build/wheel-cp$version" \
    -C "cmake.define.RANKPROBE_STATIC_DIR=$work/static" \
    -C "cmake.define.RANKPROBE_GLIBC_STUBS=$work/glibc-$glibc" "$RANKPROBE_ROOT/agent/python" >"$log" 2>&1 ||
    { tail -n 30 "$log" >&2; die "the wheel does not build, see $log"; }
  say "Wheel for Python ${version/3/3.}: checking the symbols that it needs"
  # Nothing is left to graft: auditwheel checks every symbol and names the tag.
  PATH=$work/tools/bin:$PATH "$work/tools/bin/auditwheel" repair --plat "manylinux_${glibc/./_}_x86_64" \
    -w "$work/dist" "$work/raw/"*"-cp$version-"*.whl
done
say "Done"
ls -l "$work/dist"
