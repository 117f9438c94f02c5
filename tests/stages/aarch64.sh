# SPDX-License-Identifier: Apache-2.0
# The unit tests of common/ on arm64: compiled by clang against Debian's
# arm64 libraries, run by qemu-user. Needs network the first time.
stage_test() {
  local programs=(base_test text_test io_test rpc_test tensor_test config_test records_test filter_test)
  install_packages "$RANKPROBE_ROOT/packaging/packages.txt"
  "$RANKPROBE_ROOT/packaging/aarch64/sysroot.sh"
  (
    RANKPROBE_BUILD_DIR=$RANKPROBE_ROOT/build/arm64
    RANKPROBE_CMAKE_ARGS=(-B "$RANKPROBE_BUILD_DIR" "-DCMAKE_TOOLCHAIN_FILE=$RANKPROBE_ROOT/cmake/aarch64-toolchain.cmake"
      -DRANKPROBE_BUILD_COLLECTOR=OFF -DRANKPROBE_BUILD_TORCH=OFF -DRANKPROBE_BUILD_PYTHON=OFF -DRANKPROBE_BUILD_BENCH=OFF)
    build "${programs[@]}"
  )
  # Left out: a comparison of two passes that are one here and that the emulator takes minutes for, and a
  # refusal made by seccomp, which qemu-user does not have.
  GTEST_FILTER='-F32Crc32Test.EqualsBothPasses*:*WithoutOpenat2*' \
    run_ctest "$RANKPROBE_ROOT/build/arm64" -j2 -R "^($(IFS='|' && echo "${programs[*]}"))\$"
}
