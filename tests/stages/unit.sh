# SPDX-License-Identifier: Apache-2.0
# C++ unit and integration tests against Debian's LibTorch 1.13.1.
build
run_ctest "$RANKPROBE_BUILD_DIR" -j2
