// SPDX-License-Identifier: Apache-2.0
// Statistics, checksums, content digest and payload copy of one tensor in one
// pass over memory. Kernels are chosen at run time by CPU; results do not
// depend on the choice except Mean and Norm within 1e-6 relative.
// Rules: docs/formats.md, "Statistics" and "Checksums".
// Thread-safe; no allocation up to six dimensions.
#ifndef RANKPROBE_COMMON_TENSOR_SUMMARY_H_
#define RANKPROBE_COMMON_TENSOR_SUMMARY_H_

#include <array>
#include <cstdint>
#include <vector>

#include "common/tensor/statistics.h"
#include "common/tensor/tensor_view.h"

namespace rankprobe {

enum class ChecksumMode { kNone, kCrc32, kXor64 };

struct SummaryRequest {
  bool statistics = true;
  Precision precision = Precision::kLow;
  // Requested in addition to the statistics.
  ExtraSet extra;
  ChecksumMode checksum = ChecksumMode::kNone;
  // XXH3-128 of the contiguous bytes.
  bool digest = false;
  // Destination of the contiguous bytes, or null. Must hold PayloadBytes(view).
  void* copy_to = nullptr;
};

struct Summary {
  Statistics statistics;
  // The requested statistics that the tensor has, in the order of
  // kExtraStatistics.
  std::vector<ExtraValue> extra;
  uint32_t crc32 = 0;
  uint64_t xor64 = 0;
  // Canonical big-endian XXH3-128.
  std::array<uint8_t, 16> digest{};
};

// Product of sizes; 1 for a 0-dim tensor. Sizes are trusted (agent side).
int64_t NumElements(const TensorView& view);

// Bytes of the contiguous copy of `view`.
uint64_t PayloadBytes(const TensorView& view);

// Whether the result depends on the order of the elements. Statistics alone do
// not, and are then computed in memory order.
bool SummaryNeedsOrder(const SummaryRequest& request);

Summary Summarize(const TensorView& view, const SummaryRequest& request);

// Result of a reduction on a device, of at least one element. Floating dtypes:
// the bits of doubles, maximum, minimum, mean, norm; others (bool: 0 and 1):
// the int64 maximum and minimum.
struct ReducedNumbers {
  std::array<uint64_t, 4> words;
};

// Returns the statistics that Summarize would compute (zero extremes are
// positive). The value of a 0-dimensional tensor is its maximum. `dtype` must
// not be complex.
Statistics StatisticsOfReduced(v1::DType dtype, bool zero_dimensional,
                               Precision precision,
                               const ReducedNumbers& numbers);

// Writes `statistics` into `out`; null values stay unset.
void StatisticsToProto(const Statistics& statistics, v1::TensorStats* out);
void ExtrasToProto(const std::vector<ExtraValue>& extra,
                   v1::TensorSummary* out);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TENSOR_SUMMARY_H_
