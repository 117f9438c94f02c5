// SPDX-License-Identifier: Apache-2.0
// A server's requests in the records: which rows are recorded, and what is
// reported.
#include "agent/runtime/recorder/step_requests.h"

#include <string>
#include <vector>

#include "agent/runtime/testing/recorder_fixture.h"
#include "common/base/limits.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;

v1::StepRequests Requests(
    const std::vector<std::pair<std::string, int64_t>>& all) {
  v1::StepRequests step;
  for (const auto& [id, tokens] : all) AddRequest(id, tokens, {}, &step);
  return step;
}

TEST(StepRequestsTest, TheExactIdBeatsOneThatIsMadeOfIt) {
  const v1::StepRequests step =
      Requests({{"7-ab", 1}, {"7", 2}, {"70", 3}, {"cmpl-8-0-cd", 4}});
  EXPECT_EQ(FindRequest(step, "7")->begin(), 1);
  EXPECT_EQ(FindRequest(step, "8")->end(), 10);
  EXPECT_EQ(FindRequest(step, "9"), nullptr);
  // Two answers to one prompt.
  const v1::StepRequests pair =
      Requests({{"1_a", 1}, {"0_cmpl-b-0-c", 2}, {"1_cmpl-b-0-c", 3}});
  EXPECT_EQ(FindRequest(pair, "b")->begin(), 1);
  EXPECT_EQ(FindRequest(pair, "a")->begin(), 0);
  EXPECT_EQ(FindRequest(pair, "_a"), nullptr);
  EXPECT_EQ(FindRequest(step, "7-a"), nullptr);
}

TEST(StepRequestsTest, ARecordNamesTheOneThatIsRecordedAmongTooMany) {
  v1::StepRequests step;
  for (int i = 0; i < kMaxStepRequests + 10; ++i)
    AddRequest(std::to_string(i), 1, {}, &step);
  AddRequest(std::string(kMaxRequestIdBytes, 'x') + "tail", 2, 5, &step);
  const v1::StepRequests out = RequestsOfRecord(
      step, FindRequest(step, std::string(kMaxRequestIdBytes, 'x') + "tail"));
  EXPECT_EQ(out.requests_size(), kMaxStepRequests);
  EXPECT_EQ(out.rows(), kMaxStepRequests + 12);
  EXPECT_EQ(out.recorded(), std::string(kMaxRequestIdBytes, 'x'));
  EXPECT_EQ(out.requests().rbegin()->id(), out.recorded());
  EXPECT_EQ(out.requests().rbegin()->position(), 5);
}

class RequestRowsTest : public testing::RecorderFixture {
 protected:
  std::unique_ptr<Recorder> MakeOf(const std::string& section) {
    return Make(R"({"dump_path": "d", "level": "L1", "statistics": )" +
                section + "}");
  }

  const std::vector<float> data_ = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<int64_t> sizes_ = {4, 2}, strides_ = {2, 1};
  const TensorInfo info_ = Info(data_, sizes_, strides_);
};

TEST_F(RequestRowsTest, OfADeviceTheRowsOfItsOwnStart) {
  auto recorder = MakeOf(R"({"request_id": "b"})");
  v1::StepRequests step = Requests({{"a", 3}, {"b", 1}});
  recorder->Start(0, &step);
  EXPECT_EQ(Call(recorder.get(), info_, Arrival::kBytes, 1).needs,
            RecordedCall::Needs::kBytes);
  // Later results belong to the start() under which they were recorded.
  step = Requests({{"b", 2}, {"a", 2}});
  recorder->Start(0, &step);
  const std::vector<ReducedNumbers> numbers(1);
  recorder->ResolveDeferred({1, 2, numbers});
  Call(recorder.get(), info_);
  recorder->Start(0);
  Call(recorder.get(), info_);
  recorder->Stop();
  EXPECT_THAT(Output("Torch.relu.0.forward").shape(), ElementsAre(1, 2));
  EXPECT_EQ(Output("Torch.relu.0.forward").stats().min_f(), 6);
  EXPECT_THAT(Output("Torch.relu.1.forward").shape(), ElementsAre(2, 2));
  EXPECT_EQ(Output("Torch.relu.1.forward").stats().max_f(), 3);
  EXPECT_THAT(Output("Torch.relu.2.forward").shape(), ElementsAre(4, 2));
}

TEST_F(RequestRowsTest, AStepWithoutItIsNotRecorded) {
  auto recorder = MakeOf(R"({"request_id": "b"})");
  const v1::StepRequests other = Requests({{"a", 4}});
  recorder->Start(0, &other);
  EXPECT_FALSE(recorder->recording());
  EXPECT_TRUE(recorder->request_missing());
  recorder->Start(0);
  EXPECT_TRUE(recorder->recording());
  EXPECT_FALSE(recorder->request_missing());
}

TEST_F(RequestRowsTest, TheLastSliceOfADimensionCounts) {
  auto recorder = MakeOf(R"({"slice": [
      {"dim": 0, "begin": 0, "end": 2}, {"dim": 0, "size": 4, "begin": -1, "end": 4},
      {"dim": 0, "size": 2, "begin": 0, "end": 1}]})");
  recorder->Start(0);
  Call(recorder.get(), info_);
  recorder->Stop();
  EXPECT_THAT(Output("Torch.relu.0.forward").shape(), ElementsAre(1, 2));
  EXPECT_EQ(Output("Torch.relu.0.forward").stats().min_f(), 6);
}

}  // namespace
}  // namespace rankprobe
