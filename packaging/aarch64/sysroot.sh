#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Debian 12's arm64 libraries and headers, unpacked into build/aarch64/sysroot
# and never installed: clang compiles for them, qemu-user runs what comes out.
#   packaging/aarch64/sysroot.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib/common.sh"
work=$RANKPROBE_ROOT/build/aarch64
root=$work/sysroot
# The plugin and protoc run on this machine; gRPC's CMake files look for them there too.
packages=(libc6-dev libstdc++-12-dev libgcc-12-dev libabsl-dev libgrpc++-dev libgrpc-dev libprotobuf-dev
  protobuf-compiler-grpc protobuf-compiler libprotoc-dev libxxhash-dev libdeflate-dev zlib1g-dev libgtest-dev
  libgmock-dev libssl-dev libc-ares-dev libre2-dev rapidjson-dev)
key=$(printf '%s\n' "${packages[@]}" | sha256sum)
if [ "$(cat "$root/.key" 2>/dev/null)" = "$key" ]; then exit 0; fi

say "arm64 libraries: downloading"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/etc"
: >"$work/status"
for suite in 'debian bookworm' 'debian bookworm-updates' 'debian-security bookworm-security'; do
  printf 'deb [arch=arm64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s/%s main\n' \
    "${RANKPROBE_DEBIAN_MIRROR:-http://deb.debian.org}" "$suite"
done >"$work/etc/sources.list"
options=(-q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
  -o "Dir::Etc::sourcelist=$work/etc/sources.list" -o Dir::Etc::sourceparts=- -o Dir::Etc::preferencesparts=-
  -o "Dir::State=$work" -o "Dir::State::lists=$work/lists" -o "Dir::State::status=$work/status"
  -o "Dir::Cache=$work/cache" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
  -o DPkg::Pre-Install-Pkgs::= -o APT::Install-Recommends=false)
apt-get "${options[@]}" update
# Nothing counts as installed: apt fetches what these need, down to the C library.
apt-get "${options[@]}" -y --download-only install "${packages[@]}"
say "arm64 libraries: unpacking"
rm -rf "$root"
mkdir -p "$root"
for file in "$work/cache/archives/"*.deb; do dpkg-deb -x "$file" "$root"; done
# Absolute links would lead to this machine's libraries.
find "$root" -type l -lname '/*' | while read -r link; do
  ln -sfnr "$root$(readlink "$link")" "$link"
done
rm -rf "$work/cache" "$work/lists"
echo "$key" >"$root/.key"
