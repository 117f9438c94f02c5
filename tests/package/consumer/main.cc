// SPDX-License-Identifier: Apache-2.0
// Records one call of one rank, as a program of another framework would:
//   consumer HOST:PORT RUN
#include <array>
#include <iostream>
#include <utility>

#include "agent/runtime/recorder/recorder.h"
#include "agent/runtime/session/session.h"
#include "common/base/clock.h"

int main(int argc, char** argv) {
  const rankprobe::SystemClock clock;
  rankprobe::SessionOptions to;
  to.collector = argc > 1 ? argv[1] : "";
  to.identity.set_run(argc > 2 ? argv[2] : "consumer");
  to.identity.set_rank(0);
  to.identity.set_world_size(1);
  auto session = rankprobe::Session::Create(to, &clock);
  if (!session.ok()) {
    std::cerr << session.status() << "\n";
    return 2;
  }
  if (const auto there = (*session)->WaitConnected(absl::Seconds(60));
      !there.ok()) {
    std::cerr << there << "\n";
    return 3;
  }
  rankprobe::RecorderOptions options;
  options.config_json =
      R"({"task": "statistics", "level": "L1", "rank": [], "step": [], "dump_path": "d"})";
  options.rank = 0;
  auto recorder =
      rankprobe::Recorder::Create(options, std::move(*session), &clock);
  if (!recorder.ok()) {
    std::cerr << recorder.status() << "\n";
    return 2;
  }
  const std::array<float, 3> values = {1, 2, 4};
  const std::array<int64_t, 1> sizes = {3}, strides = {1};
  rankprobe::TensorInfo tensor;
  tensor.view = {values.data(), rankprobe::v1::DTYPE_FLOAT32, sizes, strides};
  (*recorder)->Start();
  const auto call = (*recorder)->calls().BeginApi("Torch", "add");
  (*recorder)->calls().Inputs(
      call, [&](rankprobe::CallBuilder& build, auto* phase) {
        build.Tensor(tensor, phase->mutable_input_args()->add_items());
      });
  (*recorder)->calls().Outputs(
      call, [&](rankprobe::CallBuilder& build, auto* phase) {
        build.Tensor(tensor, phase->mutable_output()->add_items());
      });
  (*recorder)->Stop();
  (*recorder)->Step();
  return 0;
}
