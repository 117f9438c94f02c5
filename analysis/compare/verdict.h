// SPDX-License-Identifier: Apache-2.0
// pass, warning or error for the rows of one entry and for the entry. The
// checks and their thresholds: docs/analysis.md, "Verdicts". Pure functions.
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

// A target row beside its partner.
struct RowPair {
  const DumpRow* target = nullptr;
  const DumpRow* reference = nullptr;  // null: no partner
  PerStat<StatDiff> stats;             // statistics and tensor mode
  TensorMetrics tensor;                // tensor mode
  // Tensor mode: dump.json names a file that is not there. Statistics judge.
  bool data_missing = false;
  bool requires_grad_consistent = true;
  Verdict verdict = Verdict::kPass;
  std::vector<std::string> messages;

  // JSON list, as json.dumps prints it.
  std::string MessagesText() const;
};

struct VerdictOptions {
  DumpMode mode = DumpMode::kStatistics;
  // Rows of graphs that were merged: shapes differ by design.
  bool merged = false;
};

// Pairs of one entry, inputs and parameters before outputs. Sets their verdicts
// and returns the worst.
Verdict JudgeEntry(absl::string_view entry, VerdictOptions options,
                   absl::Span<RowPair> pairs);

// Fills requires_grad_consistent and, by mode, those of `stats`. Tensors are the
// caller's.
void ComparePair(DumpMode mode, StatSet stats, RowPair* pair);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_VERDICT_H_
