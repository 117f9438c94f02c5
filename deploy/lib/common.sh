# SPDX-License-Identifier: Apache-2.0
# Shared by the shell entry points: paths, messages, packages, build.
# Sourced, not run. Every caller has set -euo pipefail.

RANKPROBE_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
RANKPROBE_PRESET=${RANKPROBE_PRESET:-release}
RANKPROBE_BUILD_DIR=$RANKPROBE_ROOT/build/$RANKPROBE_PRESET

say() { printf '\n== %s\n' "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# install_packages [FILE..]: installs what these files (deploy/packages.txt) name and
# this machine lacks. Needs no network when nothing is missing.
install_packages() {
  local wanted missing=() name
  [ $# -gt 0 ] || set -- "$RANKPROBE_ROOT/deploy/packages.txt"
  wanted=$(grep -hv '^#' "$@" | grep -v '^$' | sort -u)
  local installed
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' 2>/dev/null |
    awk '$2 == "installed" {print $1}' | sort -u)
  for name in $wanted; do
    grep -qxF "$name" <<<"$installed" || missing+=("$name")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    return 0
  fi
  local log=$RANKPROBE_ROOT/build/install_packages.log
  mkdir -p "${log%/*}"
  say "Installing ${#missing[@]} Debian packages (some minutes; log: $log): ${missing[*]}"
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "run as root, or install sudo, to apt-get install: ${missing[*]}"
    sudo=(sudo)
  fi
  # Thousands of lines that are only read if it fails.
  {
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q &&
      "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q \
        --no-install-recommends "${missing[@]}"
  } >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    die "apt-get failed, see $log"
  }
}

# build [target..]: configure if needed, then build.
build() {
  local jobs
  jobs=${RANKPROBE_JOBS:-$(nproc)}
  (
    cd "$RANKPROBE_ROOT"
    export CCACHE_BASEDIR=$RANKPROBE_ROOT CCACHE_NOHASHDIR=1
    if [ ! -f "$RANKPROBE_BUILD_DIR/build.ninja" ]; then
      cmake --preset "$RANKPROBE_PRESET" "${RANKPROBE_CMAKE_ARGS[@]}"
    fi
    # A header of an upgraded package may have an older date than its precompiled form, which clang refuses.
    [ ! -e /var/lib/dpkg/status ] || find "$RANKPROBE_BUILD_DIR" -name '*.pch' ! -newer /var/lib/dpkg/status -delete
    if [ $# -gt 0 ]; then
      cmake --build "$RANKPROBE_BUILD_DIR" -j "$jobs" --target "$@"
    else
      cmake --build "$RANKPROBE_BUILD_DIR" -j "$jobs"
    fi
  )
}
RANKPROBE_CMAKE_ARGS=()

# wait_until SECONDS COMMAND..: polls until COMMAND succeeds.
wait_until() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $deadline ] || return 1
    sleep 0.1
  done
}
