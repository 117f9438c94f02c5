// SPDX-License-Identifier: Apache-2.0
// What the plan asks for beside Max, Min, Mean and Norm, in the records.
#include <string>
#include <vector>

#include "agent/runtime/recorder/recorder.h"
#include "agent/runtime/testing/fake_session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using testing::FakeSession;
using ::testing::IsEmpty;
using testing::Received;

class ExtraStatisticsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Recorder> Make(const std::string& config) {
    RecorderOptions options;
    options.config_json = config;
    options.rank = 0;
    auto recorder = Recorder::Create(
        options, std::make_unique<FakeSession>(&received_), &clock_);
    EXPECT_TRUE(recorder.ok()) << recorder.status();
    return *std::move(recorder);
  }
  // With an output of `data`; of none its numbers come later.
  RecordedCall Api(Recorder* recorder, const char* op,
                   const std::vector<float>* data,
                   Arrival arrival = Arrival::kNow, uint64_t slot = 0) {
    const RecordedCall call = recorder->BeginApi("Torch", op);
    recorder->Outputs(call, [&](CallBuilder& b, v1::CallPhase* p) {
      TensorInfo info;
      info.view = {data == nullptr ? nullptr : data->data(), v1::DTYPE_FLOAT32,
                   sizes_, strides_};
      info.arrival = arrival;
      info.slot = slot;
      b.Tensor(info, p->mutable_output()->add_items());
    });
    return call;
  }
  const v1::TensorSummary& Output(const char* entry) {
    return received_.Find(entry, true)->output().items(0).tensor();
  }

  Received received_;
  ManualClock clock_;
  const std::vector<float> data_ = {0, -2, 3};
  const std::vector<int64_t> sizes_ = {3}, strides_ = {1};
};

TEST_F(ExtraStatisticsTest, OnlyWhereTheyAreAskedFor) {
  auto plain = Make(R"({"dump_path": "d", "level": "L1"})");
  plain->Start();
  EXPECT_EQ(Api(plain.get(), "relu", &data_).needs,
            RecordedCall::Needs::kNumbers);
  plain->Stop();
  EXPECT_THAT(received_.records[0].record.step_begin().extra_statistics(),
              IsEmpty());
  EXPECT_THAT(Output("Torch.relu.0.forward").extra(), IsEmpty());
  received_.records.clear();
  auto asked = Make(R"({"dump_path": "d", "level": "L1", "statistics": {
      "summary_mode": "md5", "extra_statistics": ["counts"]}})");
  asked->Start();
  Api(asked.get(), "relu", &data_);
  asked->Stop();
  EXPECT_THAT(
      received_.records[0].record.step_begin().extra_statistics(),
      ElementsAre(v1::STATISTIC_ID_NAN_COUNT, v1::STATISTIC_ID_INF_COUNT,
                  v1::STATISTIC_ID_ZERO_COUNT));
  const v1::TensorSummary& tensor = Output("Torch.relu.0.forward");
  ASSERT_EQ(tensor.extra_size(), 3);
  EXPECT_EQ(tensor.extra(2).id(), v1::STATISTIC_ID_ZERO_COUNT);
  EXPECT_TRUE(tensor.extra(2).has_i());
  EXPECT_EQ(tensor.extra(2).i(), 1);
  EXPECT_EQ(tensor.stats().max_f(), 3);
  EXPECT_TRUE(tensor.checksum().has_crc32());
}

TEST_F(ExtraStatisticsTest, NeedTheBytesOfWhatADeviceHas) {
  auto recorder = Make(R"({"dump_path": "d", "level": "L1",
      "statistics": {"extra_statistics": ["counts"]}})");
  recorder->Start();
  EXPECT_EQ(Api(recorder.get(), "relu", &data_, Arrival::kBytes, 1).needs,
            RecordedCall::Needs::kBytes);
  // Numbers alone are not taken for half of what was asked.
  Api(recorder.get(), "relu", nullptr, Arrival::kNumbers, 2);
  const std::vector<ReducedNumbers> numbers(2);
  recorder->ResolveDeferred({1, 3, numbers});
  recorder->Stop();
  EXPECT_EQ(Output("Torch.relu.0.forward").extra(2).i(), 1);
  EXPECT_EQ(Output("Torch.relu.0.forward").stats().max_f(), 3);
  EXPECT_THAT(Output("Torch.relu.1.forward").extra(), IsEmpty());
  EXPECT_FALSE(Output("Torch.relu.1.forward").stats().has_max_f());
}

}  // namespace
}  // namespace rankprobe
