// SPDX-License-Identifier: Apache-2.0
#include "analysis/scan/moved_values.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/detect/course.h"

namespace rankprobe::analysis {
namespace {

// Multiple of the minimum number of steps of a course, in which a return into
// the earlier range is not reported.
constexpr size_t kFewSteps = 2;
// Share of the largest gradient below which a gradient is rounding.
constexpr double kRounding = 1e-6;
// A loss below this share of its highest value is learned.
constexpr double kLearned = 0.01;
constexpr absl::string_view kOfSquares = "exp_avg_sq";

ScanCell AmountOf(ScanCell cell) {
  cell.largest = std::fabs(cell.largest);
  cell.smallest = std::fabs(cell.smallest);
  if (cell.largest < cell.smallest) {
    std::swap(cell.largest, cell.smallest);
    std::swap(cell.largest_rank, cell.smallest_rank);
  }
  return cell;
}

// Returns the kind of a gradient or of an average of gradients, or "" for
// other values.
absl::string_view GradientKind(absl::string_view name) {
  if (absl::StrContains(name, ".parameters_grad.")) return "own";
  if (!absl::StartsWith(name, "Parameter.")) return "";
  constexpr absl::string_view kKinds[] = {"grad", "exp_avg", kOfSquares,
                                          "momentum_buffer"};
  for (const absl::string_view kind : kKinds) {
    if (absl::ConsumeSuffix(&name, kind) && absl::EndsWith(name, ".debug."))
      return kind;
  }
  return "";
}

// The numbers of a course so far. Values fall fast in the first steps of a
// training, few numbers do not show how far they vary, and a batch may be
// trained on several times: their trend does not predict the next ones.
struct Range {
  size_t few;     // steps, in which an earlier number may come again
  double margin;  // the factor by which a number may be beyond them
  size_t known = 0;
  double lowest = HUGE_VAL, highest = 0;
  ScanCell last = {};

  bool Holds(const ScanCell& cell) const {
    // A few numbers do not show how far the value varies.
    return (known < few && IsNear(cell, lowest / margin, highest * margin)) ||
           IsNear(cell, last.smallest, last.largest);
  }
  bool IsNear(const ScanCell& cell, double low, double high) const {
    return cell.largest <= margin * high && cell.smallest * margin >= low;
  }
  void Add(const ScanCell& cell) {
    ++known;
    lowest = std::min(lowest, cell.smallest);
    highest = std::max(highest, cell.largest);
    last = cell;
  }
};

}  // namespace

MovedValues::MovedValues(const ScanInput& input, const ScanOptions& options,
                         const ReplicatedValues& replicated,
                         ScanFindings& found)
    : input_(input), options_(options), replicated_(replicated), found_(found) {
  for (const ScanSeries& series : input_.values) {
    if (series.passes_zero) pass_zero_.insert(series.name);
    const absl::string_view kind = GradientKind(series.name);
    if (kind.empty()) continue;
    double& largest = largest_gradients_[kind];
    for (const ScanCell& cell : series.cells) {
      if (IsFinite(cell)) largest = std::max(largest, cell.largest);
    }
  }
}

bool MovedValues::IsRatioToOneNumber(absl::string_view name) const {
  return absl::StartsWith(name, "Update.") &&
         absl::ConsumeSuffix(&name, "ratio") &&
         pass_zero_.contains(absl::StrCat(name, "update"));
}

bool MovedValues::IsRoundingOfGradients(size_t value) const {
  const absl::string_view kind = GradientKind(input_.values[value].name);
  const auto it = largest_gradients_.find(kind);
  if (it == largest_gradients_.end()) return false;
  const double limit =
      it->second * (kind == kOfSquares ? kRounding * kRounding : kRounding);
  return std::all_of(input_.values[value].cells.begin(),
                     input_.values[value].cells.end(),
                     [&](const ScanCell& cell) {
                       return !IsFinite(cell) || cell.largest <= limit;
                     });
}

bool MovedValues::IsOfSparseGradients(absl::string_view name) const {
  if (!IsStateOfOptimizer(name) && !absl::StartsWith(name, "Update."))
    return false;
  const std::vector<ScanCell>* const gradient =
      replicated_.OfParameter(name, "Parameter", "grad");
  return gradient != nullptr && std::any_of(gradient->begin(), gradient->end(),
                                            [](const ScanCell& cell) {
                                              return cell.count > 0 &&
                                                     cell.smallest == 0;
                                            });
}

bool MovedValues::IsWithoutCourse(size_t value) const {
  const std::string& name = input_.values[value].name;
  return HasNoCourse(name) || IsRatioToOneNumber(name) ||
         IsRoundingOfGradients(value) || IsOfSparseGradients(name);
}

void MovedValues::FindMoves(size_t value) {
  const std::string& name = input_.values[value].name;
  if (IsWithoutCourse(value)) return;
  CourseLimits limits(options_, name);
  CourseLimits spread_limits = limits;
  spread_limits.only_up = false;
  limits.passes_zero = input_.values[value].passes_zero;
  const std::vector<ScanCell>& cells = input_.values[value].cells;
  Course course, spread;
  size_t quiet_until = 0;
  Range range{options_.least * kFewSteps, std::exp(limits.least_distance / 2)};
  for (size_t i = 0; i < cells.size(); ++i) {
    const ScanCell cell = AmountOf(cells[i]);
    if (!IsFinite(cell)) continue;
    // 0 has no logarithm; FindVanished handles it.
    if (cell.largest == 0 || cell.smallest == 0) continue;
    const double apart = cell.largest / cell.smallest;
    if (i >= quiet_until) {
      // If only one rank moves, either the smallest or the largest value
      // stays.
      const bool all = !range.Holds(cell) &&
                       course.IsMove(cell.largest, limits) &&
                       (cell.count < 2 || course.IsMove(cell.smallest, limits));
      // The value of a single rank may also pass through 0.
      const bool one =
          !all && cell.count > 1 && spread.IsMove(apart, spread_limits) &&
          (!limits.passes_zero || course.IsMove(cell.largest, limits));
      if (all || one) {
        const bool up =
            std::fabs(Course::Log(cell.largest) -
                      Course::Log(course.Usual())) >=
            std::fabs(Course::Log(cell.smallest) - Course::Log(course.Usual()));
        found_.Add(all ? ScanKind::kMove : ScanKind::kRankMoves, i, value,
                   one || cell.count == 1
                       ? (up ? cell.largest_rank : cell.smallest_rank)
                       : -1,
                   up ? cell.largest : cell.smallest, course.Usual());
        quiet_until = i + options_.window;
        continue;  // not added to the usual range
      }
    }
    range.Add(cell);
    course.Add(std::sqrt(cell.largest) * std::sqrt(cell.smallest),
               options_.window);
    spread.Add(apart, options_.window);
  }
}

void MovedValues::FindVanished(size_t value) {
  const std::string& name = input_.values[value].name;
  if (HasNoCourse(name)) return;
  const std::vector<ScanCell>& cells = input_.values[value].cells;
  size_t since = 0;
  ZeroRun zeros;
  Course course;
  double highest = 0, last = 0;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (!IsFinite(cells[i])) continue;
    zeros.Add(cells[i].smallest == 0);
    if (cells[i].smallest != 0) {
      last = cells[i].smallest;
      highest = std::max(highest, last);
      course.Add(last, options_.window);
    } else if (zeros.zeros() == 1) {
      since = i;
    }
  }
  // A loss that fell before it reached 0 is learned.
  if (name == "Training.0.debug.loss" && last < kLearned * highest) return;
  if (zeros.Vanished(options_.least, options_.least)) {
    const bool one = cells[since].largest != 0;
    found_.Add(ScanKind::kVanished, since, value,
               one ? cells[since].smallest_rank : -1, 0, course.Usual());
  }
}

}  // namespace rankprobe::analysis
