// The statistics of a tensor: their order, and their names in the files that
// are read and written. A new one is an enumerator and a line of the table.
#ifndef RANKPROBE_DUMP_FORMAT_STATISTICS_H_
#define RANKPROBE_DUMP_FORMAT_STATISTICS_H_

#include <array>
#include <cstddef>

#include "absl/strings/string_view.h"

namespace rankprobe {

enum Stat : size_t { kMax, kMin, kMean, kNorm, kStatCount };

template <typename T>
using PerStat = std::array<T, kStatCount>;

struct StatNames {
  absl::string_view key;     // in dump.json
  absl::string_view column;  // behind "NPU " and "Bench " in a table
  // Columns of a comparison, and keys of a node in a graph.
  absl::string_view difference;
  absl::string_view relative;
};
inline constexpr PerStat<StatNames> kStatNames = {{
    {"Max", "max", "Max diff", "MaxRelativeErr"},
    {"Min", "min", "Min diff", "MinRelativeErr"},
    {"Mean", "mean", "Mean diff", "MeanRelativeErr"},
    {"Norm", "l2norm", "L2norm diff", "NormRelativeErr"},
}};

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_STATISTICS_H_
