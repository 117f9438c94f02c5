// SPDX-License-Identifier: Apache-2.0
// Difference between a statistic of one row and that of another: a number, or
// the reason why there is none. DifferenceText() and RelativeText() format it
// for tables and graphs. The rules are in docs/analysis.md, "Metrics". Pure
// functions.
#ifndef RANKPROBE_ANALYSIS_COMPARE_STAT_DIFF_H_
#define RANKPROBE_ANALYSIS_COMPARE_STAT_DIFF_H_

#include <optional>
#include <string>

#include "dump_format/json_value.h"

namespace rankprobe::analysis {

// Returns str() of a statistic in a table: "Nan" for NaN, "None" for null.
std::string StatText(const JsonValue& value);

// A statistic of the target compared with that of the reference.
struct StatDiff {
  enum class Kind {
    kNotCompared,
    kEqual,  // numbers or not
    kNumbers,
    kMissing,          // one side has none, or both are devices
    kDifferent,        // one side is not a number
    kNan,              // on one side
    kInfinite,         // target is inf or reference is -inf
    kNegativeInfinite  // the other way round
  };
  Kind kind = Kind::kNotCompared;
  // Set for kNumbers. `percent` has no sign and is unset if the reference is 0.
  double difference = 0;
  std::optional<double> percent;

  // True for kEqual and for two zeros of different types.
  bool IsZero() const;
  // Returns |difference / reference|, which is infinite for a reference of 0
  // and for the infinite kinds, or nullopt if there is no such number.
  std::optional<double> Ratio() const;
};
StatDiff CompareStat(const JsonValue& target, const JsonValue& reference);
// Returns "0", "-1.5", or a word such as "N/A", "Nan", "Diff".
std::string DifferenceText(const StatDiff& diff);
// Returns "0", "12.5%", "inf", or the word.
std::string RelativeText(const StatDiff& diff);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_STAT_DIFF_H_
