#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright and licences of everything that a wheel has linked in, as Debian's
# packages state them:
#   packaging/wheel/notices.sh FILE
set -euo pipefail
{
  echo "Linked into the programs and extensions of this package, besides rankprobe itself:"
  # Debian's source package and the package whose copyright file is its.
  while read -r source package; do
    printf '\n==== %s %s\n\n' "$source" "$(dpkg-query -W -f '${source:Upstream-Version}' "$package")"
    # A package's documentation may be a link to that of its library.
    zcat -f "/usr/share/doc/$package/copyright"
  done <<'LIST'
grpc libgrpc-dev
abseil libabsl-dev
protobuf libprotobuf-dev
openssl libssl-dev
re2 libre2-dev
c-ares libc-ares-dev
zlib zlib1g-dev
leveldb libleveldb-dev
snappy libsnappy-dev
libzstd libzstd-dev
libdeflate libdeflate-dev
xxhash libxxhash-dev
libarchive libarchive-dev
boost libboost1.74-dev
expat libexpat1-dev
sqlite3 libsqlite3-dev
yaml-cpp libyaml-cpp-dev
libxlsxwriter libxlsxwriter-dev
minizip libminizip-dev
cli11 libcli11-dev
rapidjson rapidjson-dev
pybind11 pybind11-dev
gcc-12 libstdc++-12-dev
LIST
  # In the page of `rankprobe view`.
  for licence in "$(dirname "${BASH_SOURCE[0]}")"/../../web/app/vendor/LICENSE.*; do
    printf '\n==== %s\n\n' "${licence##*/LICENSE.}"
    cat "$licence"
  done
} >"$1"
