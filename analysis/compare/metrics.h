// SPDX-License-Identifier: Apache-2.0
// Distance metrics of the elements of two tensors: numbers, or the reason why
// there is none. FormatMetric() makes the text that tables, graphs and logs
// show. The rules are in docs/analysis.md, "Metrics". Pure functions.
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
    kSpecialsDiffer  // nan and inf stand in other places
  };
  State state = State::kNotCompared;
  // Of kCompared, rounded as the tables have them: what is judged is what is
  // shown. Unset where a metric is not defined (tensors of one element), NaN
  // where it has no value.
  std::array<std::optional<double>, kTensorMetricCount> values;
  std::string message;  // why something could not be computed; or empty

  // Unset as well where a value is NaN or infinite.
  std::optional<double> Finite(TensorMetric metric) const;
};
// `state` is not kCompared.
TensorMetrics NoMetrics(TensorMetrics::State state, absl::string_view message);
// A number as Python prints it, "Nan", "inf", or a word for the state.
std::string FormatMetric(const TensorMetrics& metrics, size_t metric);
// Reads both tensors once, in blocks.
absl::StatusOr<TensorMetrics> CompareTensors(const PtTensor& target,
                                             const PtTensor& reference);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_METRICS_H_
