// SPDX-License-Identifier: Apache-2.0
// A tensor on its way into an aligned dump: its bytes, or where the dump has
// none its statistics, and the operations of the rules on it. An operation that
// statistics cannot follow fails with FAILED_PRECONDITION and says so; one that
// does not fit the shape with INVALID_ARGUMENT. Plain values.
#ifndef RANKPROBE_ANALYSIS_ALIGN_ALIGNED_TENSOR_H_
#define RANKPROBE_ANALYSIS_ALIGN_ALIGNED_TENSOR_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "analysis/align/align_rules.h"
#include "dump_format/pt_reader.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {

// Of the usual four; unset: no number.
using UsualStats = std::array<std::optional<double>, kUsualStatCount>;

struct AlignedTensor {
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  std::vector<int64_t> shape;
  // Row-major. Unset: the dump has statistics only.
  std::optional<std::string> bytes;
  UsualStats stats;  // without bytes

  int64_t elements() const;
};

// Of what the bytes hold, else `stats`.
absl::StatusOr<UsualStats> StatsOf(const AlignedTensor& tensor);

// All of `tensor`; floats in another type than `dtype` are rounded to it, whole
// numbers of 32 and 64 bits become one another, all else is refused.
absl::StatusOr<std::string> ReadBytes(const PtTensor& tensor, v1::DType dtype);
bool CanBecome(v1::DType from, v1::DType to);

// [begin, end) of dimension `dim`, which counts from the end when negative.
absl::Status Slice(int64_t dim, int64_t begin, int64_t end,
                   AlignedTensor* tensor);
absl::Status Split(const SplitRule& rule, AlignedTensor* tensor);
absl::StatusOr<AlignedTensor> Concat(absl::Span<const AlignedTensor> parts,
                                     int64_t dim);
// Element by element, of tensors of one shape and a floating-point type; added
// in doubles and rounded once. `average`: divided by their number.
absl::StatusOr<AlignedTensor> Sum(absl::Span<const AlignedTensor> terms,
                                  bool average);
absl::Status Transpose(absl::Span<const int64_t> order, AlignedTensor* tensor);

std::string ShapeText(absl::Span<const int64_t> shape);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ALIGN_ALIGNED_TENSOR_H_
