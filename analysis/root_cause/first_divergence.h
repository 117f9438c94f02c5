// SPDX-License-Identifier: Apache-2.0
// `first-divergence`: the earliest calls of a dump whose outputs differ from
// another dump's while their inputs match, over all ranks and through
// communication, and everything that could not be compared.
#ifndef RANKPROBE_ANALYSIS_ROOT_CAUSE_FIRST_DIVERGENCE_H_
#define RANKPROBE_ANALYSIS_ROOT_CAUSE_FIRST_DIVERGENCE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/compare/entry_match.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"

namespace rankprobe::analysis {

// Tolerance of the comparison. Differences are relative to the size of the
// values (docs/analysis.md, "Tolerances").
struct Tolerance {
  // A fixed tolerance. If unset, it follows from the dtype and the length of
  // the sums that a value was computed from.
  std::optional<double> fixed;
  // A dump that repeats the reference run. Its distance from the reference is
  // the noise.
  std::string noise;
  double noise_factor = 3;
  // The dumps come from two programs, which sum in different orders from the
  // first call on.
  bool two_programs = false;
};

struct Divergence {
  // The row is an input or parameter that differs although no earlier call made
  // it differ: it came from outside (a weight, a batch).
  bool from_outside = false;
  // For a row from outside: whether it is a value that is not a tensor, which
  // the program's code passes, or a parameter.
  bool is_argument = false;
  bool is_weight = false;
  // The call of the target that returned this value, if it returned the same
  // value in the reference. The programs then differ between the two calls.
  std::string made_by;
  int64_t step = 0;
  int64_t reference_step = 0;
  int64_t rank = 0;
  std::string call;
  std::string reference_call;
  std::string module;  // "blocks.2.attn (Attention)"; empty: not known
  std::string row;     // the row that differs most
  std::string target_values;
  std::string reference_values;
  double difference = 0;  // relative
  double tolerance = 0;
  std::optional<double> noise;  // of this row, if it was measured
  int64_t inputs_matched = 0;
  // Inputs within the tolerance whose digests nevertheless differ.
  int64_t inputs_close = 0;
  int64_t inputs_unknown = 0;
  // Inputs whose statistics match and contain an infinity, which hides all
  // other elements.
  int64_t inputs_infinite = 0;
  // Inputs that no recorded call made although their statistics match: the
  // unrecorded calls that made them, after `gap_after`, may have reordered
  // their elements.
  std::vector<std::string> unmade_inputs;
  std::string gap_after;
  std::string code_line;  // "train.py:13 in forward: .."
  std::vector<std::string> stack;
};

// Counts of what was not compared, by reason.
struct Unseen {
  int64_t only_in_target = 0;  // calls
  int64_t only_in_reference = 0;
  int64_t rows_without_partner = 0;
  int64_t rows_without_values = 0;  // null statistics and no checksum
  int64_t lost = 0;                 // gaps that the manifests list
  std::vector<std::string> examples;
  bool Any() const {
    return only_in_target + only_in_reference + rows_without_partner +
               rows_without_values + lost >
           0;
  }
};

struct DivergenceReport {
  int64_t calls_compared = 0;
  int64_t calls_differing = 0;
  // At most one for each step and rank: its first. Differences that
  // communication passed on are left out.
  std::vector<Divergence> origins;
  // Ranks whose first difference was received by communication.
  struct Carried {
    int64_t step = 0;
    int64_t rank = 0;
    std::string call;
    int64_t from_rank = 0;
  };
  std::vector<Carried> carried;
  // Remarks on the complete report, one line each.
  std::vector<std::string> notes;
  // Differences of run cards that may explain the report. Filled by callers
  // that have the run cards.
  std::vector<std::string> explanations;
  Unseen unseen;
};

// Compares two dumps, given by their paths or by their layouts. Returns
// INVALID_ARGUMENT if they cannot be compared.
absl::StatusOr<DivergenceReport> FindDivergence(FileSystem* file_system,
                                                const std::string& target,
                                                const std::string& reference,
                                                const MatchOptions& match,
                                                const Tolerance& tolerance);
absl::StatusOr<DivergenceReport> FindDivergence(FileSystem* file_system,
                                                const DumpLayout& target,
                                                const DumpLayout& reference,
                                                const MatchOptions& match,
                                                const Tolerance& tolerance);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_FIRST_DIVERGENCE_H_
