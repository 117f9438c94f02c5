// SPDX-License-Identifier: Apache-2.0
// Statistics other than Max, Min, Mean and Norm in an exported dump.json.
#include <string>
#include <vector>

#include "collector/archive/export.h"
#include "collector/testing/dump_importer.h"
#include "collector/testing/frames.h"
#include "common/testing/fault_file_system.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidjson/document.h"

namespace rankprobe {
namespace {

using testing::Frames;
using ::testing::HasSubstr;
using testing::MakeIdentity;
using testing::ReadTextFile;

class ExportStatisticsTest : public testing::TempDirTest {};

v1::StepBegin* BeginStatistics(v1::RecordBatch* batch, uint64_t order) {
  v1::Record* record = batch->add_records();
  record->set_order(order);
  v1::StepBegin* begin = record->mutable_step_begin();
  begin->set_task("statistics");
  begin->set_level("mix");
  begin->set_framework("pytorch");
  begin->set_dump_path("d");
  return begin;
}

// They follow the others in their order, null if a tensor lacks one, whatever
// their order on the wire; statistics that were not requested are absent.
TEST_F(ExportStatisticsTest, AreThoseTheStepAsksFor) {
  for (const bool asked : {false, true}) {
    const std::string run = asked ? "asked" : "plain";
    Frames frames(MakeIdentity(run, 0, 1));
    v1::RecordBatch* batch = frames.AddBatch(0);
    v1::StepBegin* begin = BeginStatistics(batch, 0);
    if (asked) {
      begin->add_extra_statistics(v1::STATISTIC_ID_ZERO_COUNT);
      begin->add_extra_statistics(static_cast<v1::StatisticId>(31));
    }
    v1::Record* record = batch->add_records();
    record->set_order(1);
    v1::CallPhase* call = record->mutable_call();
    call->set_entry("Torch.add.0.forward");
    call->set_kind(v1::CALL_KIND_API_FORWARD);
    v1::TensorSummary* tensor =
        call->mutable_output()->add_items()->mutable_tensor();
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    tensor->mutable_stats()->set_max_f(1);
    for (const auto id :
         {v1::STATISTIC_ID_ZERO_COUNT, v1::STATISTIC_ID_NAN_COUNT}) {
      v1::ExtraStatistic* extra = tensor->add_extra();
      extra->set_id(id);
      extra->set_i(7);
    }
    *call->mutable_output()->add_items() = call->output().items(0);
    call->mutable_output()->mutable_items(1)->mutable_tensor()->clear_extra();
    if (asked) {  // started again in the same step, by another plan
      BeginStatistics(batch, 2)->add_extra_statistics(
          v1::STATISTIC_ID_INF_COUNT);
    }
    std::unique_ptr<Store> store = OpenStore();
    ASSERT_TRUE(store->Commit(frames.All()).ok());
    ExportOptions options;
    options.run = run;
    ASSERT_TRUE(ExportRunToDirectory(store.get(), options, file_system_.get(),
                                     root_ + "/" + run)
                    .ok());
    const std::string text =
        ReadTextFile(root_ + "/" + run + "/step0/rank0/dump.json");
    rapidjson::Document dump;
    dump.Parse(text.c_str());
    std::vector<std::string> keys;
    const auto& output = dump["data"]["Torch.add.0.forward"]["output"];
    for (const auto& member : output[0].GetObject())
      keys.push_back(member.name.GetString());
    if (!asked) {
      EXPECT_FALSE(dump.HasMember("extra_statistics"));
      EXPECT_THAT(keys,
                  ::testing::ElementsAre("type", "dtype", "shape", "Max", "Min",
                                         "Mean", "Norm", "requires_grad"));
      continue;
    }
    EXPECT_THAT(text, HasSubstr(R"("extra_statistics": [
  "InfCount",
  "ZeroCount"
 ],
 "data": {)"));
    EXPECT_THAT(keys, ::testing::ElementsAre("type", "dtype", "shape", "Max",
                                             "Min", "Mean", "Norm", "InfCount",
                                             "ZeroCount", "requires_grad"));
    EXPECT_TRUE(output[0]["InfCount"].IsNull());
    EXPECT_EQ(output[0]["ZeroCount"].GetInt(), 7);
    EXPECT_TRUE(output[1]["ZeroCount"].IsNull());
  }
}

}  // namespace
}  // namespace rankprobe
