# Data races: the rooms with threads under the thread sanitizer. Not part of the
# default run, for its build time.
(
  RANKPROBE_PRESET=tsan
  RANKPROBE_BUILD_DIR=$RANKPROBE_ROOT/build/tsan
  RANKPROBE_CMAKE_ARGS=(-DRANKPROBE_BUILD_TORCH=OFF -DRANKPROBE_BUILD_PYTHON=OFF -DRANKPROBE_BUILD_BENCH=OFF)
  build agent_runtime_test store_test ingest_test control_test collector_test
)
run_ctest "$RANKPROBE_ROOT/build/tsan" -j2 -E '_NOT_BUILT$|Crash|fuzz|Fuzz'
