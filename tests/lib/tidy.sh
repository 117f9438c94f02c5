#!/usr/bin/env bash
# clang-tidy over the C++ sources, warnings as errors. A file whose text, headers
# and checks are unchanged since its last clean run is not run again (stamps in
# build/tidy).
#   tests/lib/tidy.sh [FILE..]
# The path analysis (clang-analyzer-*) takes as long as the rest: it runs with
# RANKPROBE_TIDY_ANALYZER=1 only.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib/common.sh"
cd "$RANKPROBE_ROOT"
stamps=$RANKPROBE_ROOT/build/tidy
mkdir -p "$stamps"
if [ $# -gt 0 ]; then files=("$@"); else
  mapfile -t files < <(git ls-files 'common/*.cc' 'agent/runtime/*.cc' 'collector/*.cc' 'dump_format/*.cc' 'analysis/*.cc' 'cli/*.cc' |
    grep -v -E '_test\.cc$|_benchmark\.cc$|/testing/|/fuzz/')
fi
# Headers are few enough to be one key for all files.
headers=$(cat .clang-tidy $(git ls-files '*.h' '*.proto') | sha256sum)
checks=-clang-analyzer-*
[ -z "${RANKPROBE_TIDY_ANALYZER:-}" ] || checks=
export stamps headers checks RANKPROBE_BUILD_DIR
printf '%s\n' "${files[@]}" | xargs -P "${RANKPROBE_JOBS:-$(nproc)}" -n 1 bash -c '
  key=$( (echo "$headers$checks"; cat "$0") | sha256sum | cut -c1-32)
  [ -f "$stamps/$key" ] && exit 0
  if output=$(clang-tidy -p "$RANKPROBE_BUILD_DIR" --quiet --checks="$checks" "$0" 2>/dev/null); then
    touch "$stamps/$key"
  else
    printf "%s\n" "$output"; echo "clang-tidy: $0 has findings"; exit 1
  fi'
echo "clang-tidy: ${#files[@]} files clean"
