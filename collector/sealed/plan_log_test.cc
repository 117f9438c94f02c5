// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/plan_log.h"

#include <memory>
#include <string>

#include "collector/sealed/testing/sealed_fixture.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::FaultObjectStore;

v1::PlanSpec Plan(uint64_t epoch) {
  v1::PlanSpec plan;
  plan.set_epoch(epoch);
  plan.set_config_json("{}");
  return plan;
}

class PlanLogTest : public ::testing::Test {
 protected:
  std::unique_ptr<PlanLog> Open() {
    auto log = PlanLog::Open(&objects_);
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }
  static uint64_t EpochOf(PlanLog* log, const std::string& key) {
    const auto plan = log->Load(key);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() && plan->has_value() ? (*plan)->epoch() : 0;
  }

  FaultObjectStore objects_;
};

TEST_F(PlanLogTest, TheLastVersionCountsAlsoForTheNextRoot) {
  const auto log = Open();
  EXPECT_EQ(EpochOf(log.get(), "run"), 0u);
  for (uint64_t epoch = 1; epoch <= 3; ++epoch)
    ASSERT_TRUE(log->Save("run", Plan(epoch)).ok());
  ASSERT_TRUE(log->Save("../other run", Plan(9)).ok());
  EXPECT_EQ(EpochOf(log.get(), "run"), 3u);
  const auto next = Open();
  EXPECT_EQ(EpochOf(next.get(), "run"), 3u);
  EXPECT_EQ(EpochOf(next.get(), "../other run"), 9u);
  ASSERT_TRUE(next->Save("run", Plan(4)).ok());
  EXPECT_EQ(EpochOf(Open().get(), "run"), 4u);
}

// Two roots that were started by mistake: one decides.
TEST_F(PlanLogTest, OfTwoRootsOneDecides) {
  const auto one = Open(), two = Open();
  ASSERT_TRUE(one->Save("run", Plan(1)).ok());
  const absl::Status late = two->Save("run", Plan(2));
  EXPECT_TRUE(absl::IsAborted(late)) << late;
  EXPECT_TRUE(absl::IsAborted(two->Save("run", Plan(3))));
  EXPECT_EQ(EpochOf(Open().get(), "run"), 1u);
  // The winner continues, and so does one that is started again.
  EXPECT_TRUE(one->Save("run", Plan(2)).ok());
  EXPECT_TRUE(Open()->Save("run", Plan(3)).ok());
}

TEST_F(PlanLogTest, AnAnswerThatIsLostIsNoOtherRoot) {
  const auto log = Open();
  // The plan was put.
  objects_.FailFrom(1, FaultObjectStore::Fault::kAfter);
  EXPECT_FALSE(log->Save("run", Plan(1)).ok());
  objects_.FailFrom(0, FaultObjectStore::Fault::kBefore);
  // The same plan again, and another one.
  ASSERT_TRUE(log->Save("run", Plan(1)).ok());
  objects_.FailFrom(1, FaultObjectStore::Fault::kAfter);
  EXPECT_FALSE(log->Save("run", Plan(2)).ok());
  objects_.FailFrom(0, FaultObjectStore::Fault::kBefore);
  ASSERT_TRUE(log->Save("run", Plan(3)).ok());
  EXPECT_EQ(EpochOf(log.get(), "run"), 3u);
  EXPECT_EQ(EpochOf(Open().get(), "run"), 3u);
  // The plan was not put.
  objects_.FailFrom(1, FaultObjectStore::Fault::kBefore);
  EXPECT_FALSE(log->Save("run", Plan(4)).ok());
  objects_.FailFrom(0, FaultObjectStore::Fault::kBefore);
  ASSERT_TRUE(log->Save("run", Plan(5)).ok());
  EXPECT_EQ(EpochOf(Open().get(), "run"), 5u);
}

TEST_F(PlanLogTest, DamageAndHolesAreTold) {
  ASSERT_TRUE(Open()->Save("run", Plan(1)).ok());
  ASSERT_TRUE(Open()->Save("run", Plan(2)).ok());
  ASSERT_EQ(objects_.objects().size(), 2u);
  const auto first = objects_.mutable_objects()->begin();
  std::string& last = objects_.mutable_objects()->rbegin()->second;
  for (size_t i = 0; i < last.size(); ++i) {
    last[i] = static_cast<char>(last[i] ^ 4);
    EXPECT_TRUE(absl::IsDataLoss(Open()->Load("run").status())) << i;
    last[i] = static_cast<char>(last[i] ^ 4);
  }
  EXPECT_EQ(EpochOf(Open().get(), "run"), 2u);
  objects_.mutable_objects()->erase(first);
  EXPECT_TRUE(absl::IsDataLoss(PlanLog::Open(&objects_).status()));
}

}  // namespace
}  // namespace rankprobe
