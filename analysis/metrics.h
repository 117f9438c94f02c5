// Differences between two rows: of their statistics, and of their elements.
// The rules are in docs/analysis.md, "Metrics". Pure functions.
#ifndef RANKPROBE_ANALYSIS_METRICS_H_
#define RANKPROBE_ANALYSIS_METRICS_H_

#include <array>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "analysis/json_value.h"
#include "analysis/pt_reader.h"

namespace rankprobe::analysis {

// str() of a statistic in a table: "Nan" for NaN, "None" for null.
std::string StatText(const JsonValue& value);

// Text of a comparison: a number, or a word such as "N/A", "Nan", "Diff".
struct StatDiff {
  std::string difference;
  std::string relative;  // "0", "12.5%", ..
  // |difference / benchmark|; unset for a word, infinite for a benchmark of 0.
  std::optional<double> ratio;
};
StatDiff CompareStat(const JsonValue& target, const JsonValue& benchmark);

inline constexpr size_t kTensorMetricCount = 6;
inline constexpr std::array<absl::string_view, kTensorMetricCount>
    kTensorMetricNames = {"Cosine",
                          "EucDist",
                          "MaxAbsErr",
                          "MaxRelativeErr",
                          "One Thousandth Err Ratio",
                          "Five Thousandths Err Ratio"};

struct TensorMetrics {
  std::array<std::string, kTensorMetricCount> text;
  std::string message;  // why something could not be computed; or empty
};
// All six say `word`.
TensorMetrics UniformMetrics(absl::string_view word,
                             absl::string_view message = "");
// Reads both tensors once, in blocks.
absl::StatusOr<TensorMetrics> CompareTensors(const PtTensor& target,
                                             const PtTensor& benchmark);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_METRICS_H_
