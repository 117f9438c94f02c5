# SPDX-License-Identifier: Apache-2.0
# The Python front end beside the real msprobe, entry by entry. Both live in
# build/venv-interop; the package of rankprobe comes from the build tree.
source "$RANKPROBE_ROOT/tests/lib/venv.sh"
make_venv "$RANKPROBE_ROOT/build/venv-interop" "${INTEROP_REQUIREMENTS[@]}"
build
PYTHONPATH=$RANKPROBE_BUILD_DIR/python \
  run_pytest "$RANKPROBE_ROOT/build/venv-interop/bin/python" "$RANKPROBE_ROOT/tests/interop" "$RANKPROBE_ROOT/tests/workloads"
