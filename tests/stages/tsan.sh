# SPDX-License-Identifier: Apache-2.0
# Data races: the rooms with threads under the thread sanitizer. Not part of the
# default run, for its build time.
stage_test() {
  local programs=(base_test io_test rpc_test queue_test recorder_test session_test agent_triggers_test store_test ingest_test
    control_test services_test server_test archive_test object_store_test sealed_test http_test)
  (
    RANKPROBE_PRESET=tsan
    RANKPROBE_BUILD_DIR=$RANKPROBE_ROOT/build/tsan
    RANKPROBE_CMAKE_ARGS=(-DRANKPROBE_BUILD_TORCH=OFF -DRANKPROBE_BUILD_PYTHON=OFF -DRANKPROBE_BUILD_BENCH=OFF)
    build "${programs[@]}"
  )
  run_ctest "$RANKPROBE_ROOT/build/tsan" -j2 -R "^($(IFS='|' && echo "${programs[*]}"))\$"
}
