// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/triggers/course_watch.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace rankprobe {
namespace {

CourseOptions OptionsOf(const v1::TriggerRule& rule) {
  CourseOptions options;
  if (rule.has_move()) {
    options.window = rule.move().window();
    options.deviations = rule.move().deviations();
    options.factor = rule.move().factor();
  }
  options.least = std::min(options.least, options.window);
  return options;
}

template <typename Integer>
double AsDouble(Integer number) {
  return static_cast<double>(number);
}

std::optional<double> MaxOf(const v1::TensorStats& stats) {
  if (stats.has_max_f()) return stats.max_f();
  if (stats.has_max_i()) return AsDouble(stats.max_i());
  if (stats.has_max_b()) return stats.max_b() ? 1 : 0;
  return std::nullopt;
}

std::optional<double> MinOf(const v1::TensorStats& stats) {
  if (stats.has_min_f()) return stats.min_f();
  if (stats.has_min_i()) return AsDouble(stats.min_i());
  if (stats.has_min_b()) return stats.min_b() ? 1 : 0;
  return std::nullopt;
}

std::optional<double> NormOf(const v1::TensorStats& stats) {
  if (stats.has_norm_f()) return stats.norm_f();
  if (stats.has_norm_i()) return AsDouble(stats.norm_i());
  return std::nullopt;
}

std::optional<double> MeanOf(const v1::TensorStats& stats) {
  if (stats.has_mean_f()) return stats.mean_f();
  if (stats.has_mean_i()) return AsDouble(stats.mean_i());
  return std::nullopt;
}

std::optional<double> StatisticOf(const v1::TensorStats& stats,
                                  v1::Move::Statistic statistic) {
  switch (statistic) {
    case v1::Move::STATISTIC_MAX:
      return MaxOf(stats);
    case v1::Move::STATISTIC_MIN:
      return MinOf(stats);
    case v1::Move::STATISTIC_MEAN:
      return MeanOf(stats);
    default:
      return NormOf(stats);
  }
}

absl::string_view StatisticName(v1::Move::Statistic statistic) {
  switch (statistic) {
    case v1::Move::STATISTIC_MAX:
      return "Max";
    case v1::Move::STATISTIC_MIN:
      return "Min";
    case v1::Move::STATISTIC_MEAN:
      return "Mean";
    default:
      return "Norm";
  }
}

// The largest absolute value of a tensor, or its norm: 0 if all elements are 0.
std::optional<double> AmountOf(const v1::TensorStats& stats) {
  if (const auto norm = NormOf(stats); norm.has_value()) return norm;
  const std::optional<double> max = MaxOf(stats), min = MinOf(stats);
  if (!max.has_value() || !min.has_value()) return std::nullopt;
  return std::max(std::fabs(*max), std::fabs(*min));
}

}  // namespace

CourseWatch::CourseWatch(const v1::TriggerRule& rule, CourseMemory* memory)
    : rule_(rule), options_(OptionsOf(rule)), memory_(memory) {}

CourseWatch::~CourseWatch() { memory_->Give(bytes_); }

bool CourseWatch::IsFor(const v1::TriggerRule& rule) const {
  return rule.entry_contains() == rule_.entry_contains() &&
         rule.condition_case() == rule_.condition_case() &&
         rule.move().SerializeAsString() == rule_.move().SerializeAsString() &&
         rule.vanished().SerializeAsString() ==
             rule_.vanished().SerializeAsString();
}

CourseWatch::Watched* CourseWatch::Find(const std::string& name) {
  const auto it = values_.find(name);
  if (it != values_.end()) return &it->second;
  const size_t bytes =
      sizeof(Watched) + sizeof(std::string) + name.size() +
      (rule_.has_move() ? (options_.window + 1) * sizeof(double) : 0);
  if (!memory_->Take(bytes)) return nullptr;
  bytes_ += bytes;
  CourseLimits limits(options_, name);
  limits.only_up = limits.only_up || rule_.move().only_up();
  return &values_.try_emplace(name, Watched{limits, {}, {}}).first->second;
}

std::optional<std::string> CourseWatch::Look(int64_t step,
                                             absl::string_view entry,
                                             absl::string_view value,
                                             const v1::TensorStats& stats,
                                             bool rests) {
  const std::string name =
      value.empty() ? std::string(entry) : absl::StrCat(entry, ".", value);
  if (rule_.has_vanished()) {
    if (auto gone = LookForState(step, entry, value, rests)) return gone;
  }
  const std::optional<double> norm = NormOf(stats), mean = MeanOf(stats);
  const bool passes_zero =
      norm.has_value() && mean.has_value() && MayPassZero(name, *norm, *mean);
  // The update is recorded before the ratio of the same entry.
  if (value == "update") one_number_ = passes_zero ? std::string(entry) : "";
  if (!absl::StrContains(name, rule_.entry_contains())) return std::nullopt;
  const std::optional<double> number =
      rule_.has_move() ? StatisticOf(stats, rule_.move().statistic())
                       : AmountOf(stats);
  const bool has_number = number.has_value() && std::isfinite(*number);
  if (!has_number ||
      (rule_.has_move() && (*number == 0 || HasNoCourse(name) ||
                            (value == "ratio" && one_number_ == entry)))) {
    // After a move each recorded step counts, as in scan.
    if (const auto it = values_.find(name);
        it != values_.end() && it->second.quiet > 0) {
      --it->second.quiet;
    }
    return std::nullopt;
  }
  Watched* const watched = Find(name);
  if (watched == nullptr) return std::nullopt;
  if (!rule_.has_move()) return LookForZeros(value, *number, rests, watched);
  CourseLimits limits = watched->limits;
  limits.passes_zero = passes_zero;
  return LookForMove(value, *number, rests, limits, watched);
}

std::optional<std::string> CourseWatch::LookForMove(absl::string_view value,
                                                    double number, bool rests,
                                                    const CourseLimits& limits,
                                                    Watched* watched) const {
  if (watched->quiet > 0) {
    --watched->quiet;
  } else if (watched->course.IsMove(number, limits)) {
    // Returns without Add: the number of a move is not part of the course.
    watched->quiet = static_cast<uint32_t>(options_.window) - 1;
    if (rests) return std::nullopt;
    return absl::StrCat(value, value.empty() ? "" : ": ",
                        StatisticName(rule_.move().statistic()), " ", number,
                        ", off its course of ", watched->course.Usual());
  }
  watched->course.Add(number, options_.window);
  return std::nullopt;
}

std::optional<std::string> CourseWatch::LookForZeros(absl::string_view value,
                                                     double number, bool rests,
                                                     Watched* watched) const {
  watched->zeros.Add(number == 0);
  if (number != 0) {
    watched->told = false;
    return std::nullopt;
  }
  const size_t before = rule_.vanished().from_start() ? 0 : options_.least;
  if (watched->told || rests ||
      !watched->zeros.Vanished(before, rule_.vanished().values()))
    return std::nullopt;
  watched->told = true;
  return absl::StrCat(value, value.empty() ? "" : ": ", "0 for ",
                      watched->zeros.zeros(), " recorded steps, after ",
                      watched->zeros.before(), " in which it was not");
}

// "Parameter.fc.weight.0.debug" is recorded before the optimizer's step,
// "Update." of the same parameter after it; both are recorded or neither.
std::optional<std::string> CourseWatch::LookForState(int64_t step,
                                                     absl::string_view entry,
                                                     absl::string_view value,
                                                     bool rests) {
  absl::string_view parameter = entry;
  if (absl::ConsumePrefix(&parameter, "Parameter.")) {
    const std::string name = absl::StrCat(entry, ".", value);
    if (!IsStateOfOptimizer(name) ||
        !absl::StrContains(name, rule_.entry_contains()))
      return std::nullopt;
    auto it = states_.find(parameter);
    if (it == states_.end()) {
      const size_t bytes =
          sizeof(std::string) + parameter.size() + sizeof(State);
      if (!memory_->Take(bytes)) return std::nullopt;
      bytes_ += bytes;
      it = states_.try_emplace(std::string(parameter)).first;
    }
    it->second = {step, false};
    return std::nullopt;
  }
  if (value != "update" || !absl::ConsumePrefix(&parameter, "Update."))
    return std::nullopt;
  const auto it = states_.find(parameter);
  if (it == states_.end() || it->second.last_step == step || it->second.told ||
      rests)
    return std::nullopt;
  it->second.told = true;
  return absl::StrCat(
      "the optimizer's state of it no longer exists; last in step ",
      it->second.last_step);
}

}  // namespace rankprobe
