// SPDX-License-Identifier: Apache-2.0
// Fixture for tests of the Recorder: recorders whose FakeSession stores
// everything that they send. Not thread-safe.
#ifndef RANKPROBE_AGENT_RUNTIME_TESTING_RECORDER_FIXTURE_H_
#define RANKPROBE_AGENT_RUNTIME_TESTING_RECORDER_FIXTURE_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/runtime/recorder/recorder.h"
#include "agent/runtime/testing/fake_session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe::testing {

class RecorderFixture : public ::testing::Test {
 protected:
  std::unique_ptr<Recorder> Make(const std::string& config,
                                 std::optional<int64_t> rank = 0) {
    RecorderOptions options;
    options.config_json = config;
    options.rank = rank;
    auto recorder = Recorder::Create(
        options, std::make_unique<FakeSession>(&received_), &clock_);
    EXPECT_TRUE(recorder.ok()) << recorder.status();
    return *std::move(recorder);
  }
  static TensorInfo Info(const std::vector<float>& data,
                         const std::vector<int64_t>& sizes,
                         const std::vector<int64_t>& strides) {
    TensorInfo info;
    info.view = {data.data(), v1::DTYPE_FLOAT32, sizes, strides};
    return info;
  }
  // Records a call with this output only.
  static RecordedCall Call(Recorder* recorder, TensorInfo output,
                           Arrival arrival = Arrival::kNow, uint64_t slot = 0) {
    output.arrival = arrival;
    output.slot = slot;
    const RecordedCall call = recorder->calls().BeginApi("Torch", "relu");
    recorder->calls().Outputs(call, [&](CallBuilder& b, v1::CallPhase* p) {
      b.Tensor(output, p->mutable_output()->add_items());
    });
    return call;
  }
  const v1::TensorSummary& Output(const char* entry) {
    return received_.Find(entry, true)->output().items(0).tensor();
  }

  Received received_;
  ManualClock clock_;
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_AGENT_RUNTIME_TESTING_RECORDER_FIXTURE_H_
