// SPDX-License-Identifier: Apache-2.0
// The config.json files of the documents rankprobe follows: each is accepted
// and means what its document says, or is refused with the document's reason.
#include <fstream>
#include <sstream>

#include "common/config/plan.h"
#include "common/testing/source_tree.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<ConfigResult> Read(const std::string& name) {
  std::ifstream file(testing::GoldenDir() + "/configs/" + name);
  EXPECT_TRUE(file.good()) << name;
  std::stringstream text;
  text << file.rdbuf();
  return ParseConfig(text.str(), {});
}

TEST(DocumentConfigsTest, StatisticsOfAllRanksAndStepsAtL1) {
  for (const char* name :
       {"guide_statistics.json", "collection_statistics.json",
        "file_statistics.json"}) {
    const auto config = Read(name);
    ASSERT_TRUE(config.ok()) << name << ": " << config.status();
    EXPECT_THAT(config->warnings, IsEmpty()) << name;
    const Plan& plan = config->plan;
    EXPECT_EQ(plan.task, Task::kStatistics);
    EXPECT_EQ(plan.level, Level::kL1);
    EXPECT_EQ(plan.dump_path, "/home/data_dump");
    EXPECT_TRUE(plan.ranks.all() && plan.steps.all());
    EXPECT_TRUE(plan.scope.empty() && plan.list.empty());
    EXPECT_TRUE(plan.data_mode.forward && plan.data_mode.backward);
    EXPECT_TRUE(plan.data_mode.input && plan.data_mode.output);
    EXPECT_EQ(plan.summary_mode, SummaryMode::kStatistics);
    EXPECT_FALSE(plan.async_dump || plan.dump_enable.has_value());
    EXPECT_TRUE(plan.extra_info);
  }
}

TEST(DocumentConfigsTest, TensorsThatDifferFromAReference) {
  const auto config = Read("file_tensor_bench.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->warnings, IsEmpty());
  EXPECT_EQ(config->plan.task, Task::kTensor);
  EXPECT_EQ(config->plan.bench_path, "/home/bench_data_dump");
  EXPECT_EQ(config->plan.diff_nums, 5);
  EXPECT_EQ(config->plan.summary_mode, SummaryMode::kMd5);
}

TEST(DocumentConfigsTest, TheDynamicSwitchIsOffAtFirst) {
  const auto config = Read("file_dynamic.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->plan.dump_enable, std::optional<bool>(false));
}

TEST(DocumentConfigsTest, WhatIsNotForCaptureIsRefusedWithItsReason) {
  const auto check = Read("file_acc_check.json");
  EXPECT_THAT(std::string(check.status().message()), HasSubstr("offline"));
  const auto overflow = Read("file_overflow_check.json");
  const std::string message(overflow.status().message());
  EXPECT_THAT(message, HasSubstr("MindSpore"));
  EXPECT_THAT(message, HasSubstr("L2")) << "both faults in one answer";
}

}  // namespace
}  // namespace rankprobe
