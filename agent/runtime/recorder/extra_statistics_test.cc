// SPDX-License-Identifier: Apache-2.0
// Statistics that the plan requests besides Max, Min, Mean and Norm, in the
// records.
#include <vector>

#include "agent/runtime/testing/recorder_fixture.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ExtraStatisticsTest : public testing::RecorderFixture {
 protected:
  const std::vector<float> data_ = {0, -2, 3};
  const std::vector<int64_t> sizes_ = {3}, strides_ = {1};
  const TensorInfo info_ = Info(data_, sizes_, strides_);
};

TEST_F(ExtraStatisticsTest, OnlyWhereTheyAreAskedFor) {
  auto plain = Make(R"({"dump_path": "d", "level": "L1"})");
  plain->Start();
  EXPECT_EQ(Call(plain.get(), info_).needs, RecordedCall::Needs::kNumbers);
  plain->Stop();
  EXPECT_THAT(received_.records[0].record.step_begin().extra_statistics(),
              IsEmpty());
  EXPECT_THAT(Output("Torch.relu.0.forward").extra(), IsEmpty());
  received_.records.clear();
  auto asked = Make(R"({"dump_path": "d", "level": "L1", "statistics": {
      "summary_mode": "md5", "extra_statistics": ["counts"]}})");
  asked->Start();
  Call(asked.get(), info_);
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
  EXPECT_EQ(Call(recorder.get(), info_, Arrival::kBytes, 1).needs,
            RecordedCall::Needs::kBytes);
  // Numbers alone are not used as a part of the requested statistics.
  Call(recorder.get(), info_, Arrival::kNumbers, 2);
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
