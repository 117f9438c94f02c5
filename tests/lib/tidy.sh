#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over the C++ sources, warnings as errors. A unit (tests/lib/tidy_units.py)
# whose texts, headers and checks are unchanged since its last clean run is not
# run again (stamps in build/tidy).
#   tests/lib/tidy.sh [SOURCE..]
# The path analysis (clang-analyzer-*) takes as long as the rest: it runs with
# RANKPROBE_TIDY_ANALYZER=1 only.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib/common.sh"
cd "$RANKPROBE_ROOT"
stamps=$RANKPROBE_ROOT/build/tidy
mkdir -p "$stamps"
units=$(python3 tests/lib/tidy_units.py "$RANKPROBE_BUILD_DIR" "$@")
# Headers are few enough to be one key for all units.
headers=$(cat .clang-tidy $(git ls-files '*.h' '*.proto') | sha256sum)
# A unity file does include sources.
checks=-bugprone-suspicious-include
[ -n "${RANKPROBE_TIDY_ANALYZER:-}" ] || checks=$checks,-clang-analyzer-*
export stamps headers checks RANKPROBE_BUILD_DIR
# The longest first, so that no processor waits for the last one.
awk -F '\t' '{n = split($2, f, " "); print n "\t" $0}' <<<"$units" | sort -rn | cut -f 2- |
  xargs -P "${RANKPROBE_JOBS:-$(nproc)}" -d '\n' -n 1 bash -c '
  IFS=$'"'\t'"' read -r unit sources <<<"$0"
  key=$( (echo "$headers$checks"; cat $sources) | sha256sum | cut -c1-32)
  [ -f "$stamps/$key" ] && exit 0
  if output=$(clang-tidy -p "$RANKPROBE_BUILD_DIR" --quiet --checks="$checks" "$unit" 2>&1); then
    touch "$stamps/$key"
  else
    printf "%s\n" "$output"; echo "clang-tidy: $sources: findings"; exit 1
  fi'
echo "clang-tidy: $(cut -f 2 <<<"$units" | wc -w) files clean"
