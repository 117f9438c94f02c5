// SPDX-License-Identifier: Apache-2.0
// `compare --diff_analyze`: the first calls over all ranks whose outputs are
// far from the reference dump's, through communication.
#ifndef RANKPROBE_ANALYSIS_ROOT_CAUSE_DIFF_ANALYZE_H_
#define RANKPROBE_ANALYSIS_ROOT_CAUSE_DIFF_ANALYZE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/compare/compare.h"
#include "analysis/root_cause/anomaly_origin.h"

namespace rankprobe::analysis {

// Fed with the comparisons of one rank after another of one step. The readers
// outlive it. Not thread-safe.
class DiffAnalyzer {
 public:
  explicit DiffAnalyzer(std::vector<int64_t> world)
      : links_(world.size() > 1 ? std::move(world) : std::vector<int64_t>()) {}

  void BeginRank(int64_t rank, const DumpReader* target);
  absl::Status AddEntry(const EntryComparison& entry, size_t index);
  // "{call: {is_same, op_items}}" of the rank that was begun last.
  std::string RankJson() const;
  // "{rank_R: [..]}"; empty when nothing differs.
  absl::StatusOr<std::string> FirstJson();

 private:
  CommLinks links_;
  std::vector<RankStates> ranks_;
  std::string rank_json_;
  JsonDocument record_;
};

// Further than 50 % in a statistic, NaN on one side, or another checksum.
bool IsFarOff(const RowPair& pair, DumpMode mode);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_DIFF_ANALYZE_H_
