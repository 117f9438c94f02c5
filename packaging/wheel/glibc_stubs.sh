#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes what a link against an old glibc needs: the C library's symbols as of
# that version (libc.so.6 and its parts, without code), crt files, and the
# functions that newer headers expect in the library. zig (PyPI: ziglang)
# carries this for every version of glibc.
#   packaging/wheel/glibc_stubs.sh PYTHON VERSION DIR
# PYTHON has ziglang; DIR is then for clang's -B and -L.
set -euo pipefail
python=$1 version=$2 out=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
key="$version $(cat "$here"/glibc_stubs.sh "$here"/glibc_compat.c | sha256sum)"
if [ "$(cat "$out/.key" 2>/dev/null)" = "$key" ]; then exit 0; fi

rm -rf "$out"
mkdir -p "$out/cache"
echo 'int main(void) { return 0; }' >"$out/empty.c"
export ZIG_GLOBAL_CACHE_DIR=$out/cache ZIG_LOCAL_CACHE_DIR=$out/cache
link=$("$python" -m ziglang cc -target "x86_64-linux-gnu.$version" -v "$out/empty.c" -o "$out/empty" 2>&1 |
  grep -E -- '^ld.lld .*--entry _start' | tail -1)
for file in Scrt1.o crti.o crtn.o libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 libutil.so.1 \
  libresolv.so.2 libld.so.2 libc_nonshared.a; do
  path=$(tr ' ' '\n' <<<"$link" | grep -E "/$file\$" | head -1)
  [ -f "$path" ] || { echo "glibc_stubs: zig's link has no $file" >&2; exit 1; }
  cp "$path" "$out/$file"
done
# The linker takes a soname from the file: each under the name that -l looks for.
clang -c -O2 -fPIC -fvisibility=hidden "$here/glibc_compat.c" -o "$out/glibc_compat.o"
for name in pthread dl rt util resolv; do
  soname=("$out/lib$name".so.*)
  echo "GROUP ( ${soname[0]##*/} )" >"$out/lib$name.so"
done
echo "GROUP ( libm.so.6 )" >"$out/libm.so"
echo "GROUP ( glibc_compat.o libc.so.6 libc_nonshared.a AS_NEEDED ( libpthread.so.0 libdl.so.2 librt.so.1 libresolv.so.2 libm.so.6 libld.so.2 ) )" \
  >"$out/libc.so"
rm -rf "$out/cache" "$out/empty" "$out/empty.c"
echo "$key" >"$out/.key"
