// SPDX-License-Identifier: Apache-2.0
// Steps of a run that are not rolled up.
#include <string>
#include <utility>
#include <vector>

#include "collector/archive/query_series.h"
#include "collector/archive/testing/summary_fixture.h"
#include "collector/store/index.h"
#include "collector/store/keys.h"

namespace rankprobe {
namespace {

using testing::Frames;
using testing::MakeIdentity;
using testing::SummaryTest;

// Compares the processes of "run" as the store has them in memory, in its
// index, and as another process of the collector reads them.
TEST_F(SummaryTest, WhatIsNotRolledUpIsKnownWithoutALookAtTheIndex) {
  using Steps = std::vector<std::pair<int64_t, uint64_t>>;
  const auto known = [&] {
    Steps steps;
    EXPECT_TRUE(store_
                    ->ForEachUnrolled(*store_->RunNumber("run"),
                                      [&](int64_t step, uint64_t incarnation) {
                                        steps.emplace_back(step, incarnation);
                                        return absl::OkStatus();
                                      })
                    .ok());
    return steps;
  };
  const auto expect = [&](const Steps& wanted) {
    EXPECT_EQ(known(), wanted);
    const uint32_t run = *store_->RunNumber("run");
    maker_.reset();
    store_.reset();
    Steps stored;
    {
      IndexOptions options{.directory = root_ + "/data/index",
                           .file_system = file_system_.get()};
      auto index = OpenLevelDbIndex(options);
      ASSERT_TRUE(index.ok());
      ASSERT_TRUE((*index)
                      ->Scan(keys::TableOfRun('u', run),
                             [&](absl::string_view key, absl::string_view) {
                               const auto step = keys::ParseStep(key);
                               stored.emplace_back(step->step,
                                                   step->incarnation);
                               return absl::OkStatus();
                             })
                      .ok());
    }
    EXPECT_EQ(stored, wanted);
    store_ = OpenStore();
    maker_ = std::make_unique<SummaryMaker>(store_.get());
    EXPECT_EQ(known(), wanted);
  };
  Frames other(MakeIdentity("other", 0, 3)), one(MakeIdentity("run", 0, 1)),
      two(MakeIdentity("run", 1, 2));
  AddStep(&other, 0, 1);
  Commit(other);
  for (int64_t step = 0; step < 4; ++step) {
    AddStep(&one, step, 1);
    AddStep(&two, step, 1, /*end=*/step != 2);
  }
  two.AddBatch(9);  // it gets no records
  Commit(one);
  Commit(two);
  expect(
      {{0, 1}, {0, 2}, {1, 1}, {1, 2}, {2, 1}, {2, 2}, {3, 1}, {3, 2}, {9, 2}});
  RollUp();
  expect({{9, 2}});
  RollUp();
  expect({{9, 2}});
  // More records for two steps, one of them with an end, and a new step.
  size_t before = one.size();
  AddStep(&one, 1, 5, /*end=*/false, /*order=*/50);
  AddStep(&one, 5, 5, /*end=*/false);
  ASSERT_TRUE(store_->Commit(one.Range(before, one.size())).ok());
  before = two.size();
  AddStep(&two, 2, 5, /*end=*/true, /*order=*/50);
  AddStep(&two, 9, 5, /*end=*/true);
  ASSERT_TRUE(store_->Commit(two.Range(before, two.size())).ok());
  RollUp();
  EXPECT_EQ(known(), (Steps{{5, 1}}));
  Rest();
  RollUp();
  expect({});
  before = one.size();
  AddStep(&one, 6, 5);
  AddStep(&one, 7, 5, /*end=*/false);
  AddStep(&one, 8, 5);
  ASSERT_TRUE(store_->Commit(one.Range(before, one.size())).ok());
  const auto pending = store_->PendingRollups(10);
  ASSERT_EQ(pending.size(), 2u);
  store_->SetRollupAside(pending[0]);
  expect({{6, 1}, {7, 1}, {8, 1}});
  store_->SetRollupAside(store_->PendingRollups(1)[0]);
  DeleteOptions options{.run = "run", .steps = std::set<int64_t>{6, 7}};
  ASSERT_TRUE(store_->Delete(options).ok());
  expect({{8, 1}});
  RollUp();
  expect({});
}

}  // namespace
}  // namespace rankprobe
