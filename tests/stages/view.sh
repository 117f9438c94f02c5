# SPDX-License-Identifier: Apache-2.0
# The pages of `rankprobe view` in Debian's Chromium, before a real collector and a
# training on four ranks. Pictures are kept in build/view.
source "$RANKPROBE_ROOT/tests/lib/venv.sh"
install_packages "$RANKPROBE_ROOT/tests/view/packages.txt"
make_venv "$RANKPROBE_ROOT/build/venv-torch213" "${TORCH213_REQUIREMENTS[@]}"
build rankprobed rankprobe rankprobe_native rankprobe_analysis_native bench_archive
RANKPROBE_BUILD_DIR=$RANKPROBE_BUILD_DIR PYTHONPATH=$RANKPROBE_BUILD_DIR/python \
  run_pytest "$RANKPROBE_ROOT/build/venv-torch213/bin/python" "$RANKPROBE_ROOT/tests/view"
