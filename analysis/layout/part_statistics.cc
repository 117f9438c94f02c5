// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/part_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/text/json_text.h"

namespace rankprobe::analysis {
namespace {

using Numbers = std::vector<const PartNumber*>;

// Returns NaN if any number is NaN, like PyTorch's max and min.
PartNumber Extreme(const Numbers& numbers, bool largest) {
  const PartNumber* out = numbers[0];
  for (const PartNumber* const number : numbers) {
    if (std::isnan(out->value)) break;
    if (std::isnan(number->value) ||
        (largest ? number->value > out->value : number->value < out->value)) {
      out = number;
    }
  }
  return *out;
}

double WeightedMean(const Numbers& means, const std::vector<double>& sizes) {
  double sum = 0;
  double size = 0;
  for (size_t i = 0; i < means.size(); ++i) {
    sum += means[i]->value * sizes[i];
    size += sizes[i];
  }
  return sum / size;
}

// Combines the spread within the parts with that of their means around the
// common mean.
double Spread(const Numbers& spreads, const Numbers& means,
              const std::vector<double>& sizes) {
  const double mean = WeightedMean(means, sizes);
  double sum = 0;
  double size = 0;
  for (size_t i = 0; i < spreads.size(); ++i) {
    const double distance = means[i]->value - mean;
    sum += (spreads[i]->value * spreads[i]->value + distance * distance) *
           sizes[i];
    size += sizes[i];
  }
  return std::sqrt(sum / size);
}

}  // namespace

std::optional<PartNumber> ReadPartNumber(const JsonValue& value) {
  if (value.is_number())
    return PartNumber{value.number, std::string(value.text)};
  if (value.kind == JsonValue::Kind::kTrue) return PartNumber{1, "true"};
  if (value.kind == JsonValue::Kind::kFalse) return PartNumber{0, "false"};
  return std::nullopt;
}

std::string PartNumberText(const PartNumber& number) {
  if (!number.text.empty()) return number.text;
  if (std::isnan(number.value)) return "NaN";
  if (std::isinf(number.value))
    return number.value > 0 ? "Infinity" : "-Infinity";
  std::string out;
  AppendPythonFloat(number.value, &out);
  return out;
}

PartStats OfShards(absl::Span<const PartStatistics> parts) {
  PartStats out;
  std::vector<double> sizes;
  PerStat<Numbers> numbers;
  for (const PartStatistics& part : parts) {
    if (part.elements == 0) continue;
    sizes.push_back(static_cast<double>(part.elements));
    for (size_t i = 0; i < kStatCount; ++i) {
      if (part.stats[i].has_value()) numbers[i].push_back(&*part.stats[i]);
    }
  }
  if (sizes.empty()) return parts.empty() ? out : parts[0].stats;
  for (size_t i = 0; i < kStatCount; ++i) {
    const Numbers& all = numbers[i];
    if (all.size() < sizes.size()) continue;
    if (all.size() == 1) {
      out[i] = *all[0];
      continue;
    }
    double value = 0;
    switch (kStatInfo[i].of_parts) {
      case OfParts::kLargest:
      case OfParts::kSmallest:
        out[i] = Extreme(all, kStatInfo[i].of_parts == OfParts::kLargest);
        continue;
      case OfParts::kMean:
        value = WeightedMean(all, sizes);
        break;
      case OfParts::kRootOfSquares:
        // hypot() is used because a square may overflow although the norm does
        // not.
        for (const PartNumber* const part : all) {
          value = std::isnan(part->value) ? part->value
                                          : std::hypot(value, part->value);
        }
        break;
      case OfParts::kSum:
        for (const PartNumber* const part : all) value += part->value;
        out[i] = PartNumber{value, std::to_string(static_cast<int64_t>(value))};
        continue;
      case OfParts::kSpread:
        if (numbers[kMean].size() < sizes.size()) continue;
        value = Spread(all, numbers[kMean], sizes);
        break;
    }
    out[i] = PartNumber{value, ""};
  }
  return out;
}

PartStats OfTerms(absl::Span<const PartStatistics> terms, bool average) {
  if (terms.size() == 1) return terms[0].stats;
  PartStats out;
  double sum = 0;
  for (const PartStatistics& term : terms) {
    if (!term.stats[kMean].has_value()) return out;
    sum += term.stats[kMean]->value;
  }
  if (average) sum /= static_cast<double>(terms.size());
  out[kMean] = PartNumber{sum, ""};
  return out;
}

bool SameStatistics(const PartStats& a, const PartStats& b) {
  for (size_t i = 0; i < kStatCount; ++i) {
    if (a[i].has_value() != b[i].has_value()) return false;
    if (!a[i].has_value()) continue;
    // The text of an integer may have more digits than a double holds.
    if (a[i]->value != b[i]->value &&
        !(std::isnan(a[i]->value) && std::isnan(b[i]->value))) {
      return false;
    }
    if (!a[i]->text.empty() && !b[i]->text.empty() &&
        std::fabs(a[i]->value) >= 9007199254740992.0 &&
        a[i]->text != b[i]->text) {
      return false;
    }
  }
  return true;
}

double StatisticsDistance(const PartStats& a, const PartStats& b) {
  double size = 0;
  for (const PartStats* const stats : {&a, &b}) {
    for (const Stat stat : {kMax, kMin}) {
      if ((*stats)[stat].has_value() && std::isfinite((*stats)[stat]->value)) {
        size = std::max(size, std::fabs((*stats)[stat]->value));
      }
    }
  }
  double most = 0;
  for (const Stat stat : {kMax, kMin, kMean, kNorm}) {
    if (!a[stat].has_value() && !b[stat].has_value()) continue;
    if (!a[stat].has_value() || !b[stat].has_value()) {
      return std::numeric_limits<double>::infinity();
    }
    const double x = a[stat]->value;
    const double y = b[stat]->value;
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const double scale =
        stat == kNorm ? std::max(std::fabs(x), std::fabs(y)) : size;
    const double distance = std::fabs(x - y) / scale;
    if (!(distance <= std::numeric_limits<double>::max())) {
      return std::numeric_limits<double>::infinity();
    }
    most = std::max(most, distance);
  }
  return most;
}

}  // namespace rankprobe::analysis
