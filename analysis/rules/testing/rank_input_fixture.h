// SPDX-License-Identifier: Apache-2.0
// Fixture of tests of rank rules: a RankInput that is filled value by value.
#ifndef RANKPROBE_ANALYSIS_RULES_TESTING_RANK_INPUT_FIXTURE_H_
#define RANKPROBE_ANALYSIS_RULES_TESTING_RANK_INPUT_FIXTURE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"
#include "gtest/gtest.h"

namespace rankprobe::analysis {

class RankInputFixture : public ::testing::Test {
 protected:
  // Steps and ranks are counted from 0.
  RankInputFixture(size_t steps, size_t ranks) {
    for (size_t i = 0; i < steps; ++i)
      input_.steps.push_back(static_cast<int64_t>(i));
    for (size_t r = 0; r < ranks; ++r)
      input_.ranks.emplace_back().rank = static_cast<int64_t>(r);
  }
  RankCell& At(size_t rank, const std::string& name, size_t step) {
    std::vector<RankCell>& cells = input_.ranks[rank].values[name];
    cells.resize(input_.steps.size());
    return cells[step];
  }
  void Training(size_t rank, const std::string& name, size_t step,
                double value) {
    At(rank, absl::StrCat("Training.0.debug.", name), step) = {
        true, std::fabs(value), value, value, value};
  }

  RankInput input_;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RULES_TESTING_RANK_INPUT_FIXTURE_H_
