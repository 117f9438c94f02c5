# SPDX-License-Identifier: Apache-2.0
# What stands beside rankprobe in the interop stage and in benchmarks.
INTEROP_REQUIREMENTS=(torch==2.13.0 numpy pandas openpyxl tqdm rich pytest mindstudio-probe==26.2.0
  tb-graph-ascend==8.3.2 pyarrow duckdb chdb)
# PyTorch as it is today, and a driver of Debian's Chromium for stage view.
TORCH213_REQUIREMENTS=(torch==2.13.0 numpy pytest hypothesis playwright==1.65.2 axe-playwright-python==0.1.8)

# make_venv DIR REQUIREMENT..: a virtual environment with exactly these
# packages asked for; made once, re-made when the list changes.
make_venv() {
  local dir=$1 stamp
  shift
  stamp="$dir/.requirements"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$*" ]; then return 0; fi
  say "Installing into $dir: $*"
  rm -rf "$dir"
  python3.11 -m venv "$dir"
  local requirement
  printf '%s\n' "$@" >"$dir/constraints.txt"
  # One at a time and in order: a pinned torch must be there before anything
  # that would pull in another. What comes later moves nothing of the list.
  for requirement in "$@"; do
    "$dir/bin/python" -m pip install -q --no-input -c "$dir/constraints.txt" "$requirement"
  done
  echo "$*" >"$stamp"
}
