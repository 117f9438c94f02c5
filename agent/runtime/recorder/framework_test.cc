// SPDX-License-Identifier: Apache-2.0
// Effects of the process' framework on its records.
#include <memory>
#include <string>
#include <vector>

#include "agent/runtime/testing/recorder_fixture.h"

namespace rankprobe {
namespace {

using testing::FakeSession;
using testing::Received;

class FrameworkTest : public ::testing::Test {
 protected:
  // The statistics of an output of {1, 2, 2} in this type.
  template <typename T>
  v1::TensorStats Record(const std::string& framework, v1::DType dtype) {
    Received received;
    RecorderOptions options;
    options.config_json = R"({"dump_path": "d", "level": "L1"})";
    options.rank = 0;
    if (!framework.empty()) options.framework = framework;
    auto recorder = Recorder::Create(
        options, std::make_unique<FakeSession>(&received), &clock_);
    EXPECT_TRUE(recorder.ok()) << recorder.status();
    (*recorder)->Start();
    const std::vector<T> data = {1, 2, 2};
    const std::vector<int64_t> sizes = {3}, strides = {1};
    const RecordedCall call = (*recorder)->calls().BeginApi("Mint", "add");
    (*recorder)->calls().Outputs(call, [&](CallBuilder& b, v1::CallPhase* p) {
      TensorInfo info;
      info.view = {data.data(), dtype, sizes, strides};
      b.Tensor(info, p->mutable_output()->add_items());
    });
    (*recorder)->Stop();
    return received.Find("Mint.add.0.forward", true)
        ->output()
        .items(0)
        .tensor()
        .stats();
  }

  ManualClock clock_;
};

TEST_F(FrameworkTest, IntegersOfMindsporeAreReducedAsFloats) {
  const v1::TensorStats stats = Record<int32_t>("mindspore", v1::DTYPE_INT32);
  EXPECT_EQ(stats.max_f(), 2);
  EXPECT_FLOAT_EQ(static_cast<float>(stats.mean_f()), 5.0f / 3);
  EXPECT_EQ(stats.norm_f(), 3);
}

TEST_F(FrameworkTest, SoAreItsDoubles) {
  EXPECT_EQ(Record<double>("mindspore", v1::DTYPE_FLOAT64).norm_f(), 3);
  EXPECT_EQ(Record<float>("mindspore", v1::DTYPE_FLOAT32).norm_f(), 3);
}

TEST_F(FrameworkTest, ThoseOfPytorchAreNot) {
  const v1::TensorStats stats = Record<int32_t>("", v1::DTYPE_INT32);
  EXPECT_EQ(stats.max_i(), 2);
  EXPECT_EQ(stats.mean_case(), v1::TensorStats::MEAN_NOT_SET);
  EXPECT_EQ(Record<double>("pytorch", v1::DTYPE_FLOAT64).norm_case(),
            v1::TensorStats::NORM_NOT_SET);
}

}  // namespace
}  // namespace rankprobe
