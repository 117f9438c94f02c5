// SPDX-License-Identifier: Apache-2.0
// Alignment of a dump with a reference that another program recorded: for
// example the same model served by vLLM, with fused projections and the tokens
// of a batch concatenated, and run by transformers. Rules say which rows of the
// reference form a row of the target; positions say which tokens. The result is
// two dumps with equal names, shapes and tokens, for every tool that compares
// two dumps.
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
  // Ids of the requests whose tokens are aligned; each may be empty where its
  // side has only one request.
  std::string request;
  std::string reference_request;
};

struct AlignReport {
  struct Step {
    int64_t step = 0;
    std::vector<int64_t> reference_steps;
    // Positions in the request; `end` is exclusive.
    int64_t begin = 0;
    int64_t end = 0;
  };
  std::string request;
  std::string reference_request;
  std::vector<Step> steps;
  int64_t rows = 0;
  // Rows of the target that no rule matches.
  int64_t without_rule = 0;
  // Rows that a rule matches but that could not be aligned.
  int64_t left_out = 0;
  std::vector<std::string> examples;  // of left-out rows, with the reason
};

// Writes `output`/target and `output`/reference, dumps of steps with the names
// of the target; a record of the reference lists in "of" the rows it was made
// of. Returns INVALID_ARGUMENT, before anything is written, if nothing can be
// aligned.
absl::StatusOr<AlignReport> AlignDumps(FileSystem* file_system,
                                       const DumpLayout& target,
                                       const DumpLayout& reference,
                                       const AlignRules& rules,
                                       const AlignOptions& options,
                                       const std::string& output);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ALIGN_ALIGN_H_
