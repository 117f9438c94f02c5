// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/request_cut.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "collector/archive/testing/export_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::Begin;
using testing::DigestOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Phase;

TEST(ChooseRequestTest, TheIdBeatsWhatIsMadeOfItAndThatWhatHasItInIt) {
  EXPECT_EQ(*ChooseRequest({"cmpl-a-0", "xa", "a"}, "a"), "a");
  EXPECT_EQ(*ChooseRequest({"xa", "cmpl-a-0", "ab-1"}, "a"), "cmpl-a-0");
  EXPECT_EQ(*ChooseRequest({"cmpl-x-0", "cmpl-y-1"}, "y-"), "cmpl-y-1");
  EXPECT_EQ(*ChooseRequest({"a\nb"}, "a\nb"), "a\nb");
}

TEST(ChooseRequestTest, SeveralAndNoneAreNamed) {
  const auto several = ChooseRequest({"cmpl-a-0", "b", "cmpl-a-1"}, "a");
  EXPECT_TRUE(absl::IsInvalidArgument(several.status()));
  EXPECT_THAT(std::string(several.status().message()),
              HasSubstr("\"a\" is 2 requests, give one of them in full: "
                        "cmpl-a-0, cmpl-a-1"));
  std::vector<std::string> ids;
  for (int i = 0; i < 12; ++i) ids.push_back("r" + std::to_string(i));
  const auto none = ChooseRequest(ids, "q\n");
  EXPECT_TRUE(absl::IsNotFound(none.status()));
  EXPECT_THAT(std::string(none.status().message()),
              HasSubstr("no request is \"q\\n\"; there are r0, r1, r2, r3, "
                        "r4, r5, r6, r7, r8, r9 and 2 others"));
  EXPECT_THAT(std::string(ChooseRequest({}, "a").status().message()),
              HasSubstr("name no requests"));
}

TEST(PartWithinTest, OfPiecesWhatIsInTheRange) {
  const std::string data = "0123456789";
  for (const size_t piece : {1, 3, 4, 10}) {
    std::string out;
    for (size_t at = 0; at < data.size(); at += piece)
      absl::StrAppend(
          &out,
          PartWithin(absl::string_view(data).substr(at, piece), at, {3, 8}));
    EXPECT_EQ(out, "34567") << piece;
  }
}

// A batch of five rows, two numbers each: 1, 2, .. 10.
class RequestCutTest : public testing::ExportTest {
 protected:
  using Requests = std::vector<std::pair<std::string, int64_t>>;
  static constexpr int64_t kRows = 5;

  void SetUp() override {
    ExportTest::SetUp();
    std::vector<float> values(kRows * 2);
    std::iota(values.begin(), values.end(), 1.0F);
    data_.assign(reinterpret_cast<const char*>(values.data()),
                 values.size() * sizeof(float));
  }

  static void Say(const Requests& requests, v1::StepBegin* begin) {
    v1::StepRequests* const step = begin->mutable_requests();
    for (const auto& [id, tokens] : requests) {
      v1::RequestRows* const rows = step->add_requests();
      rows->set_id(id);
      rows->set_begin(step->rows());
      rows->set_end(step->rows() + tokens);
      step->set_rows(rows->end());
    }
  }

  v1::TensorSummary* Tensor(v1::ValueList* list, std::vector<int64_t> shape) {
    v1::TensorSummary* tensor = list->add_items()->mutable_tensor();
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    tensor->mutable_shape()->Assign(shape.begin(), shape.end());
    tensor->mutable_stats()->set_max_f(10);
    tensor->mutable_stats()->set_mean_f(5.5);
    tensor->mutable_payload()->set_digest(DigestOf(data_));
    tensor->mutable_payload()->set_length_bytes(data_.size());
    return tensor;
  }

  // A call with a tensor of the batch's rows, and one that has another dim 0.
  v1::StepBegin* AddStep(int64_t step, const Requests& requests,
                         const char* task = "tensor") {
    frames_.AddPayload(data_, /*chunk_bytes=*/7);
    v1::RecordBatch* const batch = frames_.AddBatch(step);
    v1::StepBegin* const begin = Begin(batch, 0, task);
    if (!requests.empty()) Say(requests, begin);
    v1::CallPhase* const call =
        Phase(batch, 1, "Torch.relu.0.forward", v1::CALL_KIND_API_FORWARD);
    Tensor(call->mutable_input_args(), {kRows, 2})
        ->mutable_checksum()
        ->set_crc32(7);
    Tensor(call->mutable_output(), {2, kRows});
    return begin;
  }

  absl::StatusOr<v1::ExportDone> ExportRequest(const std::string& id,
                                               bool link = false) {
    if (store_ == nullptr) {
      store_ = OpenStore();
      EXPECT_TRUE(store_->Commit(frames_.All()).ok());
    }
    ExportOptions options;
    options.run = "run";
    options.request = id;
    options.link = link;
    options.threads = 2;
    return ExportRunToDirectory(store_.get(), options, file_system_.get(),
                                root_ + "/out");
  }

  rapidjson::Document Read(const std::string& path) {
    rapidjson::Document document;
    document.Parse(testing::ReadTextFile(root_ + "/out/" + path).c_str());
    return document;
  }
  bool Exists(const std::string& path) {
    return file_system_->Exists(root_ + "/out/" + path);
  }

  std::string data_;
  testing::Frames frames_{testing::MakeIdentity("run", 0, 1)};
  std::unique_ptr<Store> store_;
};

TEST_F(RequestCutTest, ItsRowsOfTensorsWithStatisticsAnew) {
  AddStep(0, {{"cmpl-a-0", 3}, {"cmpl-b-1", 2}});
  AddStep(1, {{"cmpl-a-0", 5}});
  AddStep(2, {{"cmpl-b-1", 5}});
  for (const bool link : {false, true}) {
    SCOPED_TRACE(link);
    const auto done = ExportRequest("b", link);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(done->request(), "cmpl-b-1");
    EXPECT_EQ(done->request_steps(), 2u);
    EXPECT_EQ(done->whole_batch_steps() + done->whole_batch_tensors(), 0u);
    EXPECT_FALSE(Exists("step1"));
    const rapidjson::Document dump = Read("step0/rank0/dump.json");
    const auto& call = dump["data"]["Torch.relu.0.forward"];
    const auto& in = call["input_args"][0];
    EXPECT_EQ(in["shape"][0].GetInt(), 2);
    EXPECT_EQ(in["Max"].GetDouble(), 10);
    EXPECT_EQ(in["Min"].GetDouble(), 7);
    EXPECT_EQ(in["Mean"].GetDouble(), 8.5);
    EXPECT_EQ(call["output"][0]["shape"][0].GetInt(), 2) << "has no rows";
    EXPECT_EQ(call["output"][0]["Mean"].GetDouble(), 5.5);
    const std::string file = testing::ReadTextFile(
        root_ +
        "/out/step0/rank0/dump_tensor_data/Torch.relu.0.forward.input.0.pt");
    EXPECT_THAT(file, HasSubstr(data_.substr(24)));
    EXPECT_THAT(file, Not(HasSubstr(data_.substr(20))));
    const rapidjson::Document requests = Read("step0/rank0/requests.json");
    EXPECT_STREQ(requests[0]["recorded"].GetString(), "cmpl-b-1");
    EXPECT_EQ(requests[0]["rows"].GetInt(), kRows);
    EXPECT_EQ(requests[0]["requests"].Size(), 2u);
    EXPECT_STREQ(Read("step2/rank0/requests.json")[0]["recorded"].GetString(),
                 "cmpl-b-1");
    EXPECT_STREQ(Manifest()["request"].GetString(), "cmpl-b-1");
  }
}

TEST_F(RequestCutTest, WeightsHaveNoRowsOfABatch) {
  frames_.AddPayload(data_, /*chunk_bytes=*/7);
  v1::RecordBatch* const batch = frames_.AddBatch(0);
  Say({{"a", 3}, {"b", 2}}, Begin(batch, 0, "tensor"));
  v1::CallPhase* call = Phase(batch, 1, "Module.l.Linear.forward.0",
                              v1::CALL_KIND_MODULE_FORWARD);
  Tensor(call->mutable_output(), {kRows, 2});
  v1::ValueList list;
  v1::NamedValue* const weight = call->mutable_parameters()->add_items();
  weight->set_name("weight");
  *weight->mutable_value()->mutable_tensor() = *Tensor(&list, {kRows, 2});
  call =
      Phase(batch, 2, "Functional.linear.0.forward", v1::CALL_KIND_API_FORWARD);
  Tensor(call->mutable_input_args(), {kRows, 2});
  Tensor(call->mutable_input_args(), {kRows, 2})->set_parameter(true);
  const auto done = ExportRequest("b");
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->whole_batch_tensors(), 0u);
  const rapidjson::Document dump = Read("step0/rank0/dump.json");
  const auto& linear = dump["data"]["Functional.linear.0.forward"];
  EXPECT_EQ(linear["input_args"][0]["shape"][0].GetInt(), 2);
  EXPECT_EQ(linear["input_args"][1]["shape"][0].GetInt(), kRows);
  const auto& entry = dump["data"]["Module.l.Linear.forward.0"];
  EXPECT_EQ(entry["output"][0]["shape"][0].GetInt(), 2);
  EXPECT_EQ(entry["parameters"]["weight"]["shape"][0].GetInt(), kRows);
  EXPECT_EQ(entry["parameters"]["weight"]["Mean"].GetDouble(), 5.5);
}

TEST_F(RequestCutTest, StatisticsOfABatchStayAndAreCounted) {
  AddStep(0, {{"a", 3}, {"b", 2}}, "statistics");
  AddStep(1, {{"a", 5}}, "statistics");
  const auto done = ExportRequest("a");
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->request_steps(), 2u);
  EXPECT_EQ(done->whole_batch_steps(), 1u);
  const rapidjson::Document both = Read("step0/rank0/requests.json");
  EXPECT_TRUE(both[0]["recorded"].IsNull());
  EXPECT_STREQ(Read("step1/rank0/requests.json")[0]["recorded"].GetString(),
               "a");
}

TEST_F(RequestCutTest, WhatWasRecordedOfOneRequestIsAsItIs) {
  AddStep(0, {{"a", 5}, {"b", 2}})->mutable_requests()->set_recorded("a");
  const auto done = ExportRequest("a");
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->whole_batch_steps(), 0u);
  const auto none = ExportRequest("b");
  EXPECT_TRUE(absl::IsNotFound(none.status())) << "its rows are not there";
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("there are a"));
}

TEST_F(RequestCutTest, StartsWithOtherBatchesAreNotCut) {
  AddStep(0, {{"a", 3}, {"b", 2}});
  v1::RecordBatch* const batch = frames_.AddBatch(0);
  Say({{"b", 2}, {"a", 3}}, Begin(batch, 2));
  const auto done = ExportRequest("a");
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->whole_batch_steps(), 1u);
}

TEST_F(RequestCutTest, BytesThatAreNotThereLeaveTheTensorWhole) {
  v1::RecordBatch* const batch = frames_.AddBatch(0);
  Say({{"a", 3}, {"b", 2}}, Begin(batch, 0));
  v1::CallPhase* const call =
      Phase(batch, 1, "Torch.relu.0.forward", v1::CALL_KIND_API_FORWARD);
  Tensor(call->mutable_output(), {kRows, 2});
  Tensor(call->mutable_output(), {kRows, 3});
  Tensor(call->mutable_output(), {kRows, int64_t{1} << 60});
  const auto done = ExportRequest("a");
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->whole_batch_tensors(), 3u);
}

TEST_F(RequestCutTest, AStepThatNamesNoRequests) {
  AddStep(0, {});
  const auto done = ExportRequest("a");
  EXPECT_TRUE(absl::IsNotFound(done.status()));
  EXPECT_THAT(std::string(done.status().message()),
              HasSubstr("name no requests"));
}

}  // namespace
}  // namespace rankprobe
