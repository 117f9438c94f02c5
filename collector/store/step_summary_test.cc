// SPDX-License-Identifier: Apache-2.0
#include "collector/store/step_summary.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kEndless = std::numeric_limits<double>::infinity();

StepSummary OneStep(int64_t step, double norm) {
  StepSummary summary;
  summary.first_step = summary.last_step = step;
  summary.steps = 1;
  summary.made = 3;
  summary.values = 4;
  summary.norm.Add(norm, /*smallest=*/false);
  summary.max.Add(norm * 2, /*smallest=*/false);
  summary.min.Add(-norm, /*smallest=*/true);
  return summary;
}

bool Same(const StepExtreme& a, const StepExtreme& b) {
  return a.count == b.count && a.non_finite == b.non_finite &&
         (a.value == b.value || (std::isnan(a.value) && std::isnan(b.value)));
}

TEST(SummaryTileTest, WhatIsReadBackIsWhatWasPutIn) {
  const std::vector<double> numbers = {1,      kNoNumber, 1e300, kEndless, 0.1,
                                       1e-310, 7,         -0.0,  3e38,     2};
  for (const int level : {1, 2}) {
    SummaryTileWriter writer(level);
    std::vector<std::pair<uint32_t, StepSummary>> put;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto slot = static_cast<uint32_t>(i * 7);
      const int64_t step =
          level == 1 ? 3 * 64 + slot : 3 * 4096 + slot * 64 + 9;
      StepSummary summary = OneStep(step, numbers[i]);
      if (i == 4) summary.norm = StepExtreme();
      if (i == 6) summary = StepSummary{.deleted = 1};
      if (i == 7) summary.incomplete = 1;
      writer.Put(slot, summary);
      put.emplace_back(slot, summary);
    }
    const std::string bytes = writer.Encode(3);
    const auto view = SummaryTileView::Parse(bytes, level, 3);
    ASSERT_TRUE(view.ok()) << view.status();
    // Every contiguous range of the slots, including single ones.
    for (size_t from = 0; from < put.size(); ++from) {
      StepSummary wanted;
      uint64_t slots = 0;
      for (size_t to = from; to < put.size(); ++to) {
        wanted.Join(put[to].second);
        slots |= uint64_t{1} << put[to].first;
        const StepSummary got = view->Reduce(slots, SummaryStat::kAll);
        EXPECT_EQ(got.steps, wanted.steps);
        EXPECT_EQ(got.deleted, wanted.deleted);
        EXPECT_EQ(got.incomplete, wanted.incomplete);
        EXPECT_EQ(got.made, wanted.made);
        EXPECT_EQ(got.values, wanted.values);
        EXPECT_EQ(got.first_step, wanted.first_step);
        EXPECT_EQ(got.last_step, wanted.last_step);
        EXPECT_TRUE(Same(got.norm, wanted.norm)) << from << " " << to;
        EXPECT_TRUE(Same(got.max, wanted.max)) << from << " " << to;
        EXPECT_TRUE(Same(got.min, wanted.min)) << from << " " << to;
      }
    }
    // A truncated row never parses as a complete one with other values.
    for (size_t size = 0; size < bytes.size(); ++size) {
      const std::string part = bytes.substr(0, size);  // the view refers to it
      const auto cut = SummaryTileView::Parse(part, level, 3);
      if (cut.ok()) cut->Reduce(~uint64_t{0}, SummaryStat::kAll);
    }
    std::string other = bytes;
    other[9] = 15;  // a count that would be a number
    other[10] = static_cast<char>(other[10] | 0x20);
    EXPECT_TRUE(
        absl::IsDataLoss(SummaryTileView::Parse(other, level, 3).status()));
  }
}

TEST(SummaryTileTest, RowsOfLikeNumbersAreShort) {
  SummaryTileWriter writer(1);
  for (uint32_t slot = 0; slot < kTileSlots; ++slot)
    writer.Put(slot, OneStep(slot, 1 + slot / 100.0));
  const std::string bytes = writer.Encode(0);
  // Max and Min are not float32 values here, or each would have four bytes
  // less.
  EXPECT_LT(bytes.size(), 64 * (3 * 7 + 1u));
  const auto view = SummaryTileView::Parse(bytes, 1, 0);
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(view->Reduce(uint64_t{1} << 63, SummaryStat::kNorm).norm.value,
            1.63);
}

TEST(RollupHeadTest, SaysWhatTheSummarySays) {
  for (const double number :
       {1.5, 0.1, 0.0, -0.0, 1e300, kNoNumber, kEndless}) {
    StepSummary some = OneStep(7, number);
    StepSummary all = some;
    all.norm.count = all.made;
    all.max.count = all.min.count = all.values;
    StepSummary none = some;
    none.norm = none.max = none.min = StepExtreme();
    for (const StepSummary& summary : {some, all, none}) {
      v1::RollupHead head;
      FillHead(summary, &head);
      v1::RollupHead stored;
      ASSERT_TRUE(stored.ParseFromString(head.SerializeAsString()));
      const StepSummary got = SummaryOf(7, stored);
      EXPECT_TRUE(Same(got.norm, summary.norm)) << number;
      EXPECT_TRUE(Same(got.max, summary.max)) << number;
      EXPECT_TRUE(Same(got.min, summary.min)) << number;
      EXPECT_EQ(std::signbit(got.max.value), std::signbit(summary.max.value));
    }
  }
}

// Returns the heads of a row as text.
std::vector<std::string> Said(const SummaryTileView& view, uint64_t slots) {
  std::vector<std::string> said;
  EXPECT_TRUE(view.ForEachHead(slots,
                               [&](int64_t step, const v1::RollupHead& head) {
                                 said.push_back(absl::StrCat(
                                     step, " ", head.ShortDebugString()));
                                 return absl::OkStatus();
                               })
                  .ok());
  return said;
}

TEST(SummaryTileTest, ARowWithHeadsSaysWhatTheHeadsSaid) {
  const std::vector<double> numbers = {1,      kNoNumber, 1e300, kEndless, 0.1,
                                       1e-310, 7,         -0.0,  3e38,     2};
  SummaryTileWriter writer(1, /*with_heads=*/true);
  std::vector<std::string> wanted;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto slot = static_cast<uint32_t>(i * 7);
    const int64_t step = 3 * 64 + slot;
    StepSummary summary = OneStep(step, numbers[i]);
    if (i == 4) summary.norm = StepExtreme();
    if (i == 8) summary = StepSummary();
    v1::RollupHead head;
    if (i == 6) {
      head.set_deleted(true);
    } else {
      FillHead(summary, &head);
      head.set_records(uint64_t{1} << (5 * i));
      head.set_layout(i == 9 ? 1 << 19 : i % 2);
      head.set_incomplete(i % 3 == 1);
    }
    writer.PutHead(slot, step, head);
    wanted.push_back(absl::StrCat(step, " ", head.ShortDebugString()));
  }
  const std::string bytes = writer.Encode(3);
  EXPECT_TRUE(SummaryTileView::HasHeads(bytes));
  const auto view = SummaryTileView::Parse(bytes, 1, 3);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_TRUE(view->has_heads());
  EXPECT_EQ(Said(*view, ~uint64_t{0}), wanted);
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_EQ(Said(*view, uint64_t{1} << (i * 7)),
              std::vector<std::string>{wanted[i]});
  // The summary is the same as without heads.
  SummaryTileWriter plain(1);
  EXPECT_TRUE(view->ForEachHead(~uint64_t{0},
                                [&](int64_t step, const v1::RollupHead& head) {
                                  plain.PutHead(
                                      static_cast<uint32_t>(step - 3 * 64),
                                      step, head);
                                  return absl::OkStatus();
                                })
                  .ok());
  const std::string same = plain.Encode(3);
  EXPECT_FALSE(SummaryTileView::HasHeads(same));
  EXPECT_EQ(bytes.substr(1, same.size() - 1), same.substr(1));
  // Rows of higher levels have no heads.
  EXPECT_TRUE(absl::IsDataLoss(SummaryTileView::Parse(bytes, 2, 3).status()));
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string part = bytes.substr(0, size);
    if (const auto cut = SummaryTileView::Parse(part, 1, 3); cut.ok())
      Said(*cut, ~uint64_t{0});
  }
}

}  // namespace
}  // namespace rankprobe
