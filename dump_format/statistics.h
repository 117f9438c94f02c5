// SPDX-License-Identifier: Apache-2.0
// The statistics of a tensor: their order, their names in the files that are
// read and written, and their use in analysis. A new one is an enumerator and a
// row of the table.
#ifndef RANKPROBE_DUMP_FORMAT_STATISTICS_H_
#define RANKPROBE_DUMP_FORMAT_STATISTICS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

class JsonTextWriter;

enum Stat : size_t {
  kMax,
  kMin,
  kMean,
  kNorm,
  // Requested by config.json: only in dumps whose head names them.
  kNanCount,
  kInfCount,
  kZeroCount,
  kStd,
  kStatCount
};
// Every dump has these.
inline constexpr size_t kUsualStatCount = kNorm + 1;

template <typename T>
using PerStat = std::array<T, kStatCount>;

// How the statistic of a tensor follows from those of its parts, which are of
// equal size.
enum class OfParts {
  kLargest,
  kSmallest,
  kMean,
  kRootOfSquares,
  kSum,
  kSpread
};

// The scale of a difference between two values, for the question whether two
// tensors differ.
enum class DifferenceScale {
  kElements,  // the size of the elements
  kItself,
  kExact,  // any difference counts
  kNone    // ignored: rounding alone changes it
};

struct StatInfo {
  // STATISTIC_ID_UNSPECIFIED for the usual ones.
  v1::StatisticId id;
  absl::string_view key;     // in dump.json
  absl::string_view column;  // behind "NPU " and "Bench " in a table
  // Columns of a comparison, and keys of a node in a graph.
  absl::string_view difference;
  absl::string_view relative;
  // Explains `difference` to the reader of a graph.
  absl::string_view help;
  OfParts of_parts;
  DifferenceScale scale;
};
inline constexpr PerStat<StatInfo> kStatInfo = {{
    {v1::STATISTIC_ID_UNSPECIFIED, "Max", "max", "Max diff", "MaxRelativeErr",
     "target maximum less the reference's", OfParts::kLargest,
     DifferenceScale::kElements},
    {v1::STATISTIC_ID_UNSPECIFIED, "Min", "min", "Min diff", "MinRelativeErr",
     "target minimum less the reference's", OfParts::kSmallest,
     DifferenceScale::kElements},
    {v1::STATISTIC_ID_UNSPECIFIED, "Mean", "mean", "Mean diff",
     "MeanRelativeErr", "target mean less the reference's", OfParts::kMean,
     DifferenceScale::kElements},
    {v1::STATISTIC_ID_UNSPECIFIED, "Norm", "l2norm", "L2norm diff",
     "NormRelativeErr", "target L2 norm less the reference's",
     OfParts::kRootOfSquares, DifferenceScale::kItself},
    {v1::STATISTIC_ID_NAN_COUNT, "NanCount", "nan count", "NanCount diff",
     "NanCountRelativeErr", "target number of NaNs less the reference's",
     OfParts::kSum, DifferenceScale::kExact},
    {v1::STATISTIC_ID_INF_COUNT, "InfCount", "inf count", "InfCount diff",
     "InfCountRelativeErr", "target number of infinities less the reference's",
     OfParts::kSum, DifferenceScale::kExact},
    {v1::STATISTIC_ID_ZERO_COUNT, "ZeroCount", "zero count", "ZeroCount diff",
     "ZeroCountRelativeErr", "target number of zeros less the reference's",
     OfParts::kSum, DifferenceScale::kNone},
    {v1::STATISTIC_ID_STD, "Std", "std", "Std diff", "StdRelativeErr",
     "target standard deviation less the reference's", OfParts::kSpread,
     DifferenceScale::kElements},
}};

// The statistics that a dump has: the usual ones, and those that were added.
class StatSet {
 public:
  bool Has(size_t stat) const { return (bits_ >> stat & 1) != 0; }
  void Add(size_t stat) { bits_ |= uint32_t{1} << stat; }
  bool has_extra() const { return bits_ >> kUsualStatCount != 0; }
  friend StatSet operator|(StatSet a, StatSet b) {
    a.bits_ |= b.bits_;
    return a;
  }

 private:
  uint32_t bits_ = (uint32_t{1} << kUsualStatCount) - 1;
};

// Writes the member of the head that names the statistics besides the usual
// ones, or nothing if there are none. Separate from statistics_json.h, because
// the Python extension of the analysis does not link records: two extensions
// with records could not be loaded into one process.
void WriteExtraStatisticsHead(StatSet stats, JsonTextWriter* json);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_STATISTICS_H_
