// SPDX-License-Identifier: Apache-2.0
// Statistics of a tensor from those of its parts, which may have different
// sizes; a statistic that the parts do not determine stays unset. Pure
// functions.
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
  // The text in the dump if the number is that of one part; else empty.
  std::string text;
};
using PartStats = PerStat<std::optional<PartNumber>>;

struct PartStatistics {
  PartStats stats;
  int64_t elements = 0;
};

// Returns a number, true and false as 1 and 0, and nullopt for anything else.
std::optional<PartNumber> ReadPartNumber(const JsonValue& value);
// Returns JSON: the text, or the number as Python prints it.
std::string PartNumberText(const PartNumber& number);

// Returns exact statistics, since each element is in only one part. A part
// without elements does not matter. NaN in a part makes the result NaN.
PartStats OfShards(absl::Span<const PartStatistics> parts);
// Returns statistics of the sum (or average) of tensors of one shape. Only the
// mean follows from the statistics of the terms.
PartStats OfTerms(absl::Span<const PartStatistics> terms, bool average);

// Whether all statistics are equal; two NaN are equal, too.
bool SameStatistics(const PartStats& a, const PartStats& b);
// Returns the distance of `a` from `b` in the statistic that differs most,
// relative to the size of the values; infinite if one has no number. Used to
// choose the worst of several.
double StatisticsDistance(const PartStats& a, const PartStats& b);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_PART_STATISTICS_H_
