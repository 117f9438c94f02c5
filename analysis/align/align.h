// SPDX-License-Identifier: Apache-2.0
// Lays a dump beside a reference of another program: the same model served by
// vLLM, with fused projections and the tokens of a batch behind one another,
// and run by transformers. Rules say which rows of the reference make which of
// the target; positions say which tokens. What comes out is two dumps of equal
// names, shapes and tokens for every tool that compares two.
#ifndef RANKPROBE_ANALYSIS_ALIGN_ALIGN_H_
#define RANKPROBE_ANALYSIS_ALIGN_ALIGN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/align/align_rules.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"

namespace rankprobe::analysis {

struct AlignOptions {
  // Whose tokens; may be empty where a side has one request only.
  std::string request;
  std::string reference_request;
};

struct AlignReport {
  struct Step {
    int64_t step = 0;
    std::vector<int64_t> reference_steps;
    // Positions in the request, `end` exclusive.
    int64_t begin = 0;
    int64_t end = 0;
  };
  std::string request;
  std::string reference_request;
  std::vector<Step> steps;
  int64_t rows = 0;
  // Of the target, that no rule has.
  int64_t without_rule = 0;
  // That a rule has and that could not be laid beside one another.
  int64_t left_out = 0;
  std::vector<std::string> examples;  // of those, with the reason
};

// Writes `output`/target and `output`/reference, dumps of steps with the names
// of the target; a record of the reference says in "of" what it was made of.
// INVALID_ARGUMENT, before anything is written, where nothing can be aligned.
absl::StatusOr<AlignReport> AlignDumps(FileSystem* file_system,
                                       const DumpLayout& target,
                                       const DumpLayout& reference,
                                       const AlignRules& rules,
                                       const AlignOptions& options,
                                       const std::string& output);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ALIGN_ALIGN_H_
