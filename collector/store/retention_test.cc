#include "collector/store/retention.h"

#include <random>
#include <string>

#include "collector/testing/frames.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::DigestOf;
using testing::Frames;
using testing::MakeIdentity;

class RetentionTest : public testing::TempDirTest {
 protected:
  void SetUp() override {
    TempDirTest::SetUp();
    StoreOptions options;
    options.data_dir = root_ + "/data";
    options.min_free_bytes = 0;
    options.segment_bytes = 1 << 20;
    store_ = *Store::Open(options, file_system_.get(), &clock_);
  }
  void TearDown() override {
    store_.reset();
    TempDirTest::TearDown();
  }

  // One step of 200,000 new bytes, an hour after the one before.
  void Write(Frames* frames, int64_t step, bool finish = true) {
    clock_.Advance(absl::Hours(1));
    std::mt19937_64 random(static_cast<uint64_t>(step) + 1);
    std::string data(200000, '\0');
    for (char& c : data) c = static_cast<char>(random());
    const size_t first = frames->size();
    frames->AddPayload(data);
    v1::RecordBatch* const batch = frames->AddBatch(step);
    v1::Record* const record = batch->add_records();
    record->mutable_call()->set_entry("e");
    v1::PayloadRef* const payload = record->mutable_call()
                                        ->mutable_output()
                                        ->add_items()
                                        ->mutable_tensor()
                                        ->mutable_payload();
    payload->set_digest(DigestOf(data));
    payload->set_length_bytes(data.size());
    if (finish) {
      v1::Record* const end = batch->add_records();
      end->set_order(1);
      end->mutable_step_end();
    }
    ASSERT_TRUE(store_->Commit(frames->Range(first, frames->size())).ok());
  }

  std::vector<int64_t> Steps(const std::string& run) {
    std::vector<int64_t> out;
    const auto steps = store_->ListSteps(run);
    if (!steps.ok()) return out;
    for (const v1::StepInfo& step : *steps) {
      if (!step.deleted()) out.push_back(step.step());
    }
    return out;
  }

  std::unique_ptr<Store> store_;
};

TEST_F(RetentionTest, ByAge) {
  Frames old_run(MakeIdentity("old", 0, 1)), frames(MakeIdentity("run", 0, 2));
  Write(&old_run, 0);
  for (int64_t step = 0; step < 4; ++step) Write(&frames, step);
  clock_.Advance(absl::Minutes(30));
  RetentionOptions options;
  options.max_age = absl::Hours(3);
  const auto report = ApplyRetention(store_.get(), options, clock_.Now(), {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->steps_deleted, 2u);
  EXPECT_EQ(report->runs_deleted, 1u);
  EXPECT_EQ(Steps("run"), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(store_->ListRuns()->size(), 1u);
  const auto again = ApplyRetention(store_.get(), options, clock_.Now(), {});
  EXPECT_EQ(again->steps_deleted, 0u);
}

TEST_F(RetentionTest, ByBytesTheOldestGoFirst) {
  Frames frames(MakeIdentity("run", 0, 2));
  for (int64_t step = 0; step < 20; ++step) Write(&frames, step);
  clock_.Advance(absl::Hours(1));
  RetentionOptions options;
  options.max_bytes = 1500000;
  const auto report = ApplyRetention(store_.get(), options, clock_.Now(), {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_LE(report->garbage.live_bytes, 1500000u);
  const std::vector<int64_t> steps = Steps("run");
  ASSERT_EQ(steps.size(), 7u);
  EXPECT_EQ(steps.front(), 13);
}

// Deleting steps whose payloads must stay would give nothing back.
TEST_F(RetentionTest, NothingOfAConnectedRankIsDeletedInVain) {
  Frames frames(MakeIdentity("run", 0, 2));
  for (int64_t step = 0; step < 40; ++step) Write(&frames, step);
  RetentionOptions options;
  options.max_bytes = 1000;
  const auto report = ApplyRetention(store_.get(), options, clock_.Now(), {2});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(Steps("run").size(), 33u) << "from 32 steps behind on, all stay";
}

TEST_F(RetentionTest, AnUnfinishedStepOfAConnectedRankStays) {
  Frames frames(MakeIdentity("run", 0, 2));
  Write(&frames, 0);
  Write(&frames, 1, /*finish=*/false);
  clock_.Advance(absl::Hours(100));
  RetentionOptions options;
  options.max_age = absl::Hours(3);
  ASSERT_TRUE(ApplyRetention(store_.get(), options, clock_.Now(), {2}).ok());
  EXPECT_EQ(Steps("run"), (std::vector<int64_t>{1}));
  ASSERT_TRUE(ApplyRetention(store_.get(), options, clock_.Now(), {}).ok());
  EXPECT_TRUE(store_->ListRuns()->empty());
}

}  // namespace
}  // namespace rankprobe
