#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Debian packages (rankprobe, librankprobe-dev, python3-rankprobe) in build/debian:
#   packaging/debian/build.sh
# From build/release, brought up to date; debian/ builds nothing itself.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib/common.sh"
out=$RANKPROBE_ROOT/build/debian
version=$(sed -n 's/^project(rankprobe VERSION \([0-9.]*\).*/\1/p' "$RANKPROBE_ROOT/CMakeLists.txt")
rm -rf "$out"
mkdir -p "$out/rankprobe-$version"
cp -a "$RANKPROBE_ROOT/packaging/debian/debian" "$out/rankprobe-$version/"
cd "$out/rankprobe-$version"
mkdir -p debian
sed "s/@VERSION@/$version/; s/@DATE@/$(git -C "$RANKPROBE_ROOT" log -1 --format=%cD)/" debian/changelog.in >debian/changelog
rm debian/changelog.in
# The unit names /usr/local, where a build installs.
sed 's,/usr/local/bin,/usr/bin,' "$RANKPROBE_ROOT/deploy/systemd/rankprobed.service" >debian/rankprobe.rankprobed.service
say "Bringing $RANKPROBE_BUILD_DIR up to date"
build rankprobed rankprobe rankprobe_native rankprobe_analysis_native rankprobe_manual
say "Packing"
BUILD=$RANKPROBE_BUILD_DIR dpkg-buildpackage -b -us -uc -d
ls -l "$out"/*.deb
