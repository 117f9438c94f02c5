// SPDX-License-Identifier: Apache-2.0
#include "common/detect/course.h"

#include <cmath>
#include <limits>

#include "absl/container/inlined_vector.h"
#include "absl/strings/match.h"

namespace rankprobe {
namespace {

// In a sound run the logarithm of a norm varies by some percent; smaller
// deviations are not used as a unit for moves.
constexpr double kLeastDeviation = 0.1;
// Ratio of the standard deviation to the median absolute deviation, for
// normally distributed numbers.
constexpr double kDeviationOfMad = 1.4826;
// A loss varies less than the values it is computed from.
constexpr double kLossFactor = 2;

// Between 1 and sqrt(1/2), the value for two elements; statistics are rounded.
constexpr double kMeanOfOneElement = 0.9;

// Windows of the usual size need no heap memory.
using Numbers = absl::InlinedVector<double, 32>;

double Median(Numbers numbers) {
  const auto middle =
      numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

bool IsLoss(absl::string_view name) {
  return absl::StartsWith(name, "Training.") &&
         absl::StrContains(name, ".debug.loss");
}

bool IsOfTheSchedule(absl::string_view name) {
  return absl::StartsWith(name, "Update.") ||
         (absl::StartsWith(name, "Training.") &&
          absl::StrContains(name, ".debug.lr"));
}

// An average of squared gradients: its logarithm moves twice as far as theirs.
bool IsOfSquares(absl::string_view name) {
  return IsStateOfOptimizer(name) &&
         (absl::EndsWith(name, "_sq") || absl::EndsWith(name, ".square_avg"));
}

double FactorOf(const CourseOptions& options, absl::string_view name) {
  if (IsLoss(name)) return std::min(options.factor, kLossFactor);
  return IsOfSquares(name) ? options.factor * options.factor : options.factor;
}

}  // namespace

CourseLimits::CourseLimits(const CourseOptions& options, double factor, bool up)
    : least(options.least),
      deviations(options.deviations),
      least_distance(std::log(factor)),
      only_up(up) {}

CourseLimits::CourseLimits(const CourseOptions& options, absl::string_view name)
    : CourseLimits(options, FactorOf(options, name), IsOfTheSchedule(name)) {}

bool HasNoCourse(absl::string_view name) {
  return absl::StartsWith(name, "Training.") &&
         (absl::EndsWith(name, ".step_seconds") ||
          absl::StrContains(name, "_checksum") ||
          absl::StrContains(name, ".fresh_optimizers."));
}

bool IsStateOfOptimizer(absl::string_view name) {
  return absl::StartsWith(name, "Parameter.") &&
         !absl::EndsWith(name, ".grad") && !absl::EndsWith(name, ".param");
}

bool MayPassZero(absl::string_view name, double norm, double mean) {
  return !absl::StartsWith(name, "Training.") && std::isfinite(norm) &&
         norm > 0 && std::fabs(mean) > kMeanOfOneElement * norm;
}

bool Course::IsMove(double number, const CourseLimits& limits) const {
  const size_t count = log_.size();
  if (count < std::max<size_t>(limits.least, 2)) return false;
  const auto half = static_cast<std::ptrdiff_t>(count / 2);
  const double slope = (Median(Numbers(log_.end() - half, log_.end())) -
                        Median(Numbers(log_.begin(), log_.begin() + half))) /
                       static_cast<double>(count - static_cast<size_t>(half));
  Numbers level;
  for (size_t i = 0; i < count; ++i)
    level.push_back(log_[i] + slope * static_cast<double>(count - i));
  const double now = Log(number);
  const bool only_up = limits.only_up || limits.passes_zero;
  if (limits.passes_zero && now - *std::max_element(log_.begin(), log_.end()) <=
                                limits.least_distance)
    return false;
  // Fast path: most numbers are near all numbers of the level, and so near its
  // median.
  const auto [low, high] = std::minmax_element(level.begin(), level.end());
  if (now - *low <= limits.least_distance &&
      (only_up || *high - now <= limits.least_distance))
    return false;
  const double middle = Median(level);
  for (double& past : level) past = std::fabs(past - middle);
  const double deviation =
      std::max(kDeviationOfMad * Median(std::move(level)), kLeastDeviation);
  const double off_by = now - middle;
  const double distance = only_up ? off_by : std::fabs(off_by);
  return distance > limits.deviations * deviation &&
         distance > limits.least_distance;
}

double Course::Usual() const {
  return log_.empty() ? 0 : std::exp(Median(Numbers(log_.begin(), log_.end())));
}

void Course::Add(double number, size_t window) {
  log_.push_back(Log(number));
  if (log_.size() > window) log_.erase(log_.begin());
}

double Course::Log(double number) {
  return std::log(
      std::max(std::fabs(number), std::numeric_limits<double>::min()));
}

}  // namespace rankprobe
