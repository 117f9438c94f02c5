// SPDX-License-Identifier: Apache-2.0
// Distance metrics of the elements of two tensors: numbers, or the reason why
// there is none. FormatMetric() formats them for tables, graphs and logs. The
// rules are in docs/analysis.md, "Metrics". Pure functions.
#ifndef RANKPROBE_ANALYSIS_COMPARE_METRICS_H_
#define RANKPROBE_ANALYSIS_COMPARE_METRICS_H_

#include <array>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dump_format/pt_reader.h"

namespace rankprobe::analysis {

enum TensorMetric : size_t {
  kCosine,
  kEuclideanDistance,
  kMaxAbsoluteError,
  kMaxRelativeError,
  kBelowOneThousandth,  // share of elements with a smaller relative error
  kBelowFiveThousandths,
  kTensorMetricCount
};
inline constexpr std::array<absl::string_view, kTensorMetricCount>
    kTensorMetricNames = {"Cosine",
                          "EucDist",
                          "MaxAbsErr",
                          "MaxRelativeErr",
                          "One Thousandth Err Ratio",
                          "Five Thousandths Err Ratio"};

struct TensorMetrics {
  enum class State {
    kNotCompared,
    kCompared,
    kUnsupported,  // no elements, no data, no partner
    kShapeMismatch,
    kSpecialsDiffer  // nan and inf are at different positions
  };
  State state = State::kNotCompared;
  // Values in state kCompared, rounded as in the tables, so that verdicts use
  // the displayed numbers. Unset if a metric is not defined (tensors of one
  // element); NaN if it has no value.
  std::array<std::optional<double>, kTensorMetricCount> values;
  std::string message;  // why a metric could not be computed; or empty

  // Returns the value; unset also if it is NaN or infinite.
  std::optional<double> Finite(TensorMetric metric) const;
};
// Returns metrics without values. `state` must not be kCompared.
TensorMetrics NoMetrics(TensorMetrics::State state, absl::string_view message);
// Returns a number as Python prints it, "Nan", "inf", or a word for the state.
std::string FormatMetric(const TensorMetrics& metrics, size_t metric);
// Compares two tensors, reading each once, in blocks.
absl::StatusOr<TensorMetrics> CompareTensors(const PtTensor& target,
                                             const PtTensor& reference);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_METRICS_H_
