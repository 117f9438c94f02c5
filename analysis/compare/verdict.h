// SPDX-License-Identifier: Apache-2.0
// Verdicts (pass, warning or error) for the rows of an entry and for the entry.
// The checks and their thresholds: docs/analysis.md, "Verdicts". Pure
// functions.
#ifndef RANKPROBE_ANALYSIS_COMPARE_VERDICT_H_
#define RANKPROBE_ANALYSIS_COMPARE_VERDICT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "analysis/compare/metrics.h"
#include "analysis/compare/stat_diff.h"
#include "dump_format/dump_reader.h"
#include "dump_format/dump_rows.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {

enum class Verdict { kPass = 0, kWarning = 1, kError = 2 };
absl::string_view VerdictName(Verdict verdict);

// A target row and its partner.
struct RowPair {
  const DumpRow* target = nullptr;
  const DumpRow* reference = nullptr;  // null: no partner
  PerStat<StatDiff> stats;             // statistics and tensor mode
  TensorMetrics tensor;                // tensor mode
  // Tensor mode: dump.json names a file that does not exist. The verdict then
  // follows from the statistics.
  bool data_missing = false;
  bool requires_grad_consistent = true;
  Verdict verdict = Verdict::kPass;
  std::vector<std::string> messages;

  // Returns the messages as a JSON list in the format of json.dumps.
  std::string MessagesText() const;
};

struct VerdictOptions {
  DumpMode mode = DumpMode::kStatistics;
  // Rows of merged graphs, whose shapes differ by design.
  bool merged = false;
};

// Judges the pairs of one entry, inputs and parameters before outputs: sets
// their verdicts and returns the worst.
Verdict JudgeEntry(absl::string_view entry, VerdictOptions options,
                   absl::Span<RowPair> pairs);

// Sets requires_grad_consistent and, depending on the mode, the statistics
// `stats`. The caller compares the tensors.
void ComparePair(DumpMode mode, StatSet stats, RowPair* pair);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_VERDICT_H_
