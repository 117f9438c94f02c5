// SPDX-License-Identifier: Apache-2.0
// A server's requests in the records: which rows are taken, and what is said.
#include "agent/runtime/recorder/step_requests.h"

#include <string>
#include <vector>

#include "agent/runtime/recorder/recorder.h"
#include "agent/runtime/testing/fake_session.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using testing::FakeSession;
using testing::Received;

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

class RequestRowsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Recorder> Make(const std::string& section) {
    RecorderOptions options;
    options.config_json =
        R"({"dump_path": "d", "level": "L1", "statistics": )" + section + "}";
    options.rank = 0;
    auto recorder = Recorder::Create(
        options, std::make_unique<FakeSession>(&received_), &clock_);
    EXPECT_TRUE(recorder.ok()) << recorder.status();
    return *std::move(recorder);
  }
  RecordedCall Api(Recorder* recorder, Arrival arrival = Arrival::kNow,
                   uint64_t slot = 0) {
    const RecordedCall call = recorder->BeginApi("Torch", "relu");
    recorder->Outputs(call, [&](CallBuilder& b, v1::CallPhase* p) {
      TensorInfo info;
      info.view = {data_.data(), v1::DTYPE_FLOAT32, sizes_, strides_};
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
  const std::vector<float> data_ = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<int64_t> sizes_ = {4, 2}, strides_ = {2, 1};
};

TEST_F(RequestRowsTest, OfADeviceTheRowsOfItsOwnStart) {
  auto recorder = Make(R"({"request_id": "b"})");
  v1::StepRequests step = Requests({{"a", 3}, {"b", 1}});
  recorder->Start(0, &step);
  EXPECT_EQ(Api(recorder.get(), Arrival::kBytes, 1).needs,
            RecordedCall::Needs::kBytes);
  // What comes later is of the start that it was seen under.
  step = Requests({{"b", 2}, {"a", 2}});
  recorder->Start(0, &step);
  const std::vector<ReducedNumbers> numbers(1);
  recorder->ResolveDeferred({1, 2, numbers});
  Api(recorder.get());
  recorder->Start(0);
  Api(recorder.get());
  recorder->Stop();
  EXPECT_THAT(Output("Torch.relu.0.forward").shape(), ElementsAre(1, 2));
  EXPECT_EQ(Output("Torch.relu.0.forward").stats().min_f(), 6);
  EXPECT_THAT(Output("Torch.relu.1.forward").shape(), ElementsAre(2, 2));
  EXPECT_EQ(Output("Torch.relu.1.forward").stats().max_f(), 3);
  EXPECT_THAT(Output("Torch.relu.2.forward").shape(), ElementsAre(4, 2));
}

TEST_F(RequestRowsTest, AStepWithoutItIsNotRecorded) {
  auto recorder = Make(R"({"request_id": "b"})");
  const v1::StepRequests other = Requests({{"a", 4}});
  recorder->Start(0, &other);
  EXPECT_FALSE(recorder->recording());
  EXPECT_TRUE(recorder->request_missing());
  recorder->Start(0);
  EXPECT_TRUE(recorder->recording());
  EXPECT_FALSE(recorder->request_missing());
}

TEST_F(RequestRowsTest, TheLastSliceOfADimensionCounts) {
  auto recorder = Make(R"({"slice": [
      {"dim": 0, "begin": 0, "end": 2}, {"dim": 0, "size": 4, "begin": -1, "end": 4},
      {"dim": 0, "size": 2, "begin": 0, "end": 1}]})");
  recorder->Start(0);
  Api(recorder.get());
  recorder->Stop();
  EXPECT_THAT(Output("Torch.relu.0.forward").shape(), ElementsAre(1, 2));
  EXPECT_EQ(Output("Torch.relu.0.forward").stats().min_f(), 6);
}

}  // namespace
}  // namespace rankprobe
