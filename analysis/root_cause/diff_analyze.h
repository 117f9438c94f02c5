// SPDX-License-Identifier: Apache-2.0
// `compare --diff_analyze`: the first calls over all ranks, through
// communication, whose outputs are far from those of the reference dump.
#ifndef RANKPROBE_ANALYSIS_ROOT_CAUSE_DIFF_ANALYZE_H_
#define RANKPROBE_ANALYSIS_ROOT_CAUSE_DIFF_ANALYZE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/compare/compare.h"
#include "analysis/root_cause/anomaly_origin.h"

namespace rankprobe::analysis {

// Receives the comparisons of one step, rank by rank. The readers outlive it.
// Not thread-safe.
class DiffAnalyzer {
 public:
  explicit DiffAnalyzer(std::vector<int64_t> world)
      : links_(world.size() > 1 ? std::move(world) : std::vector<int64_t>()) {}

  void BeginRank(int64_t rank, const DumpReader* target);
  absl::Status AddEntry(const EntryComparison& entry, size_t index);
  // Returns "{call: {is_same, op_items}}" of the rank that was begun last.
  std::string RankJson() const;
  // Returns "{rank_R: [..]}", or an empty text if nothing differs.
  absl::StatusOr<std::string> FirstJson();

 private:
  CommLinks links_;
  std::vector<RankStates> ranks_;
  std::string rank_json_;
  JsonDocument record_;
};

// Whether a statistic differs by more than 50 %, one side has NaN, or the
// checksums differ.
bool IsFarOff(const RowPair& pair, DumpMode mode);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_DIFF_ANALYZE_H_
