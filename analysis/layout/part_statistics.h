// SPDX-License-Identifier: Apache-2.0
// Statistics of a tensor from those of its parts, which may be of different
// sizes; what the parts do not say stays unset. Pure functions.
#ifndef RANKPROBE_ANALYSIS_LAYOUT_PART_STATISTICS_H_
#define RANKPROBE_ANALYSIS_LAYOUT_PART_STATISTICS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "dump_format/json_value.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {

struct PartNumber {
  double value = 0;
  // As the dump has it, where it is one of the parts' own; else empty.
  std::string text;
};
using PartStats = PerStat<std::optional<PartNumber>>;

struct PartStatistics {
  PartStats stats;
  int64_t elements = 0;
};

// A number, or true and false as 1 and 0; unset for anything else.
std::optional<PartNumber> ReadPartNumber(const JsonValue& value);
// JSON: the text, or the number as Python prints it.
std::string PartNumberText(const PartNumber& number);

// Exact: no element is in two parts. A part without elements says nothing and
// takes nothing away. NaN in a part is NaN of the whole.
PartStats OfShards(absl::Span<const PartStatistics> parts);
// Of the sum (or average) of tensors of one shape: the mean is all that its
// terms' statistics say.
PartStats OfTerms(absl::Span<const PartStatistics> terms, bool average);

bool SameStatistics(const PartStats& a, const PartStats& b);
// How far `a` is from `b` in the statistic that differs most, relative to the
// size of the values; infinite where one of them has no number. For choosing the
// worst of several.
double StatisticsDistance(const PartStats& a, const PartStats& b);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_PART_STATISTICS_H_
