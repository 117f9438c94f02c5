// SPDX-License-Identifier: Apache-2.0
// The statistics of a tensor: their order, their names in the files that are
// read and written, and how analysis takes them. A new one is an enumerator and
// a line of the table.
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
  // Asked for by config.json: only in dumps whose head names them.
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

// The statistic of a tensor out of those of its parts, which are of one size.
enum class OfParts {
  kLargest,
  kSmallest,
  kMean,
  kRootOfSquares,
  kSum,
  kSpread
};

// What a difference of two is measured by, where the question is whether two
// tensors differ.
enum class DifferenceScale {
  kElements,  // the size of the elements
  kItself,
  kExact,  // any difference is one
  kNone    // says nothing: rounding alone changes it
};

struct StatInfo {
  // STATISTIC_ID_UNSPECIFIED for the usual ones.
  v1::StatisticId id;
  absl::string_view key;     // in dump.json
  absl::string_view column;  // behind "NPU " and "Bench " in a table
  // Columns of a comparison, and keys of a node in a graph.
  absl::string_view difference;
  absl::string_view relative;
  // Of `difference`, for the reader of a graph.
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

// The statistics that a dump has: the usual ones, and what was added.
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

// The member of the head that names what tensors have beside the usual
// statistics; nothing where there is nothing. Apart from statistics_json.h, for
// the analysis as an extension of Python has no records: two extensions that
// had them could not be loaded into one process.
void WriteExtraStatisticsHead(StatSet stats, JsonTextWriter* json);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_STATISTICS_H_
