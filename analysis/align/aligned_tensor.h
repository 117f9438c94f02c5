// SPDX-License-Identifier: Apache-2.0
// A tensor that is transformed for an aligned dump: its bytes, or its
// statistics where the dump has no bytes, and the operations of the rules on
// it. An operation that statistics cannot follow fails with
// FAILED_PRECONDITION, one that does not fit the shape with INVALID_ARGUMENT.
// Plain values.
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

// The four usual statistics; an unset one has no number.
using UsualStats = std::array<std::optional<double>, kUsualStatCount>;

struct AlignedTensor {
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  std::vector<int64_t> shape;
  // Row-major data. Unset if the dump has statistics only.
  std::optional<std::string> bytes;
  UsualStats stats;  // used if `bytes` is unset

  int64_t elements() const;
};

// Returns the statistics of the bytes if there are any, else `stats`.
absl::StatusOr<UsualStats> StatsOf(const AlignedTensor& tensor);

// Reads all elements of `tensor` as `dtype`: floating-point values of another
// type are rounded, 32-bit and 64-bit integers are converted into one another,
// and every other conversion is an error.
absl::StatusOr<std::string> ReadBytes(const PtTensor& tensor, v1::DType dtype);
bool CanBecome(v1::DType from, v1::DType to);

// Keeps [begin, end) of dimension `dim`. A negative `dim` counts from the end.
absl::Status Slice(int64_t dim, int64_t begin, int64_t end,
                   AlignedTensor* tensor);
absl::Status Split(const SplitRule& rule, AlignedTensor* tensor);
absl::StatusOr<AlignedTensor> Concat(absl::Span<const AlignedTensor> parts,
                                     int64_t dim);
// Sums tensors of one shape and floating-point type element by element, in
// double precision with one final rounding. With `average`, the sum is divided
// by the number of terms.
absl::StatusOr<AlignedTensor> Sum(absl::Span<const AlignedTensor> terms,
                                  bool average);
absl::Status Transpose(absl::Span<const int64_t> order, AlignedTensor* tensor);

// Returns a text such as "[4, 6]".
std::string ShapeText(absl::Span<const int64_t> shape);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ALIGN_ALIGNED_TENSOR_H_
