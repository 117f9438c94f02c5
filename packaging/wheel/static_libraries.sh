#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Debian 12's static archives serve executables as they are. A Python extension
# needs position-independent code, and three of the archives (Abseil, protobuf,
# re2) have thread-local variables that are not; libxlsxwriter has no archive.
# Builds these four from Debian's own sources, patches included, into
# build/wheel/static. Needs network the first time only.
#   packaging/wheel/static_libraries.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib/common.sh"

work=$RANKPROBE_ROOT/build/wheel
out=$work/static
sources=$work/sources
jobs=${RANKPROBE_JOBS:-$(nproc)}
packages=(abseil protobuf re2 libxlsxwriter)

# The key changes when Debian's version or this recipe does.
key=$( (dpkg-query -W libabsl-dev libprotobuf-dev libre2-dev libxlsxwriter-dev clang; cat "${BASH_SOURCE[0]}") |
  sha256sum | cut -c1-32)
if [ "$(cat "$out/.key" 2>/dev/null)" = "$key" ]; then exit 0; fi

# fetch_sources: the source packages, by apt with lists of its own (the
# machine's may lack deb-src), each of the version that is installed.
fetch_sources() {
  local apt=$work/apt mirror=${RANKPROBE_DEBIAN_MIRROR:-http://deb.debian.org}
  mkdir -p "$apt/lists/partial" "$sources"
  local signed='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
  printf 'deb-src %s %s/%s main\n' \
    "$signed" "$mirror" 'debian bookworm' "$signed" "$mirror" 'debian bookworm-updates' \
    "$signed" "$mirror" 'debian-security bookworm-security' >"$apt/sources.list"
  local options=(-q -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$apt/lists" -o APT::Sandbox::User=root)
  apt-get "${options[@]}" update
  local package version
  for package in "${packages[@]}"; do
    version=$(dpkg-query -W -f '${source:Package} ${source:Version}\n' |
      awk -v p="$package" '$1 == p {v = $2} END {print v}')
    rm -rf "${sources:?}/$package"
    mkdir "$sources/$package"
    (cd "$sources/$package" && apt-get "${options[@]}" source --only-source "$package=$version")
    find "$sources/$package" -mindepth 1 -maxdepth 1 -type d -exec mv {} "$sources/$package/src" \;
  done
}

# cmake_library NAME TARGET.. -- [cmake arguments..]
cmake_library() {
  local name=$1 targets=()
  shift
  while [ "$1" != -- ]; do targets+=(--target "$1"); shift; done
  shift
  say "Static library: $name (log: $work/$name.log)"
  cmake -G Ninja -S "$sources/$name/src" -B "$work/$name" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER_LAUNCHER=ccache \
    -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_STANDARD=17 -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF -Wno-dev "$@" >"$work/$name.log"
  cmake --build "$work/$name" -j "$jobs" "${targets[@]}" >>"$work/$name.log" 2>&1 ||
    { tail -30 "$work/$name.log" >&2; die "$name does not build"; }
  find "$work/$name" -name '*.a' -exec cp {} "$out/" \;
}

mkdir -p "$work"
export CCACHE_BASEDIR=$RANKPROBE_ROOT CCACHE_NOHASHDIR=1
say "Sources of ${packages[*]}, from Debian"
fetch_sources
rm -rf "$out"
mkdir -p "$out"
cmake_library abseil all -- -DABSL_PROPAGATE_CXX_STD=ON
cmake_library protobuf libprotobuf -- -Dprotobuf_BUILD_TESTS=OFF -Dprotobuf_WITH_ZLIB=ON
say "Static library: re2 (log: $work/re2.log)"
# Debian's source lacks the tables, and has the scripts that make them from unicode-data; they want Debian's Python and its six.
PATH=/usr/bin:$PATH make -C "$sources/re2/src" -j "$jobs" REBUILD_TABLES=1 CXX="ccache clang++" \
  CXXFLAGS="-O2 -DNDEBUG -fPIC -pthread -std=c++17" obj/libre2.a >"$work/re2.log" 2>&1 ||
  { tail -30 "$work/re2.log" >&2; die "re2 does not build"; }
cp "$sources/re2/src/obj/libre2.a" "$out/"
cmake_library libxlsxwriter all -- -DUSE_SYSTEM_MINIZIP=OFF -DUSE_OPENSSL_MD5=ON -DBUILD_TESTS=OFF
echo "$key" >"$out/.key"
