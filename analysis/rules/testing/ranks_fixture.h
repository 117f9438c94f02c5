// SPDX-License-Identifier: Apache-2.0
// Fixture of tests of rank rules: a sound data-parallel run of some linear
// layers, which a test then gives a fault.
#ifndef RANKPROBE_ANALYSIS_RULES_TESTING_RANKS_FIXTURE_H_
#define RANKPROBE_ANALYSIS_RULES_TESTING_RANKS_FIXTURE_H_

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"
#include "analysis/rules/testing/rank_input_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe::analysis {

class RankRulesTest : public RankInputFixture {
 protected:
  static constexpr size_t kRankSteps = 16;
  static constexpr size_t kLayers = 5;

  // A number of its own for each place, the same in each run.
  static double Noise(size_t a, size_t b, size_t c = 0) {
    return std::sin(static_cast<double>(12 * a + 7 * b * b + 131 * c + 1));
  }
  static RankCell Cell(double norm, double mean) {
    return {true, norm, mean, norm / 3 + 1e-5 * mean, -norm / 3.1};
  }
  static std::string Weight(size_t layer) {
    return absl::StrCat("l", layer, ".weight");
  }
  static std::string OfParameter(const std::string& parameter,
                                 const char* what) {
    return absl::StrCat("Parameter.", parameter, ".0.debug.", what);
  }
  static std::string Own(size_t layer, size_t micro = 0) {
    return absl::StrCat("Module.l", layer, ".Linear.parameters_grad.", micro,
                        ".weight");
  }

  // Data parallel: equal parameters, gradients that are averaged.
  explicit RankRulesTest(size_t ranks = 2)
      : RankInputFixture(kRankSteps, ranks) {
    for (size_t r = 0; r < ranks; ++r) {
      RankSeries& rank = input_.ranks[r];
      for (size_t layer = 0; layer < kLayers; ++layer) {
        for (size_t i = 0; i < kRankSteps; ++i) {
          rank.values[OfParameter(Weight(layer), "param")].push_back(
              Cell(3 + 0.01 * Noise(layer, i), 0.1 * Noise(layer, 3)));
          rank.values[absl::StrCat("Module.l", layer,
                                   ".Linear.forward.0.parameters.weight")]
              .push_back(rank.values[OfParameter(Weight(layer), "param")][i]);
          rank.values[Own(layer)].push_back(OwnGradient(layer, i, r));
        }
      }
    }
    Reduce([](size_t, size_t) { return 1.0; });
  }
  static RankCell OwnGradient(size_t layer, size_t step, size_t rank) {
    return Cell(1 + 0.2 * Noise(layer, step, rank),
                0.02 * Noise(rank, step, layer) + 0.01);
  }
  // factor: of layer and step.
  void Reduce(const std::function<double(size_t, size_t)>& factor) {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      for (size_t i = 0; i < kRankSteps; ++i) {
        double mean = 0, norm = 0;
        for (const RankSeries& rank : input_.ranks) {
          mean += rank.values.at(Own(layer))[i].mean /
                  static_cast<double>(input_.ranks.size());
          norm = std::max(norm, rank.values.at(Own(layer))[i].norm);
        }
        for (RankSeries& rank : input_.ranks) {
          std::vector<RankCell>& cells =
              rank.values[OfParameter(Weight(layer), "grad")];
          cells.resize(kRankSteps);
          cells[i] = Cell(norm * factor(layer, i), mean * factor(layer, i));
        }
      }
    }
  }
  // No rule but `name` finds anything.
  std::vector<RankFinding> Find(absl::string_view name) const {
    std::vector<RankFinding> out;
    for (const auto& rule : AllRankRules()) {
      EXPECT_FALSE(rule->needs().empty() || rule->cost().empty() ||
                   rule->twin().empty());
      if (!rule->CanJudge(input_)) continue;
      std::vector<RankFinding> found = rule->Look(input_);
      EXPECT_TRUE(found.empty() || rule->has_judged()) << rule->name();
      if (rule->name() == name) {
        out = std::move(found);
      } else {
        EXPECT_THAT(found, ::testing::IsEmpty())
            << rule->name() << ": " << (found.empty() ? "" : found[0].what);
      }
    }
    return out;
  }
};

class OneRankTest : public RankRulesTest {
 protected:
  OneRankTest() : RankRulesTest(1) {}
};

class FourRanksTest : public RankRulesTest {
 protected:
  FourRanksTest() : RankRulesTest(4) {}
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RULES_TESTING_RANKS_FIXTURE_H_
