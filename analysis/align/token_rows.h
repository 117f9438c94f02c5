// SPDX-License-Identifier: Apache-2.0
// Assigns rows of the tensors of each step to tokens of requests: what
// requests.json says of a serving step, or of a step without it the shape of
// its tokens, one sequence a line of the batch, positions counted on from step
// to step. Immutable after Read.
#ifndef RANKPROBE_ANALYSIS_ALIGN_TOKEN_ROWS_H_
#define RANKPROBE_ANALYSIS_ALIGN_TOKEN_ROWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/align/aligned_tensor.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"

namespace rankprobe::analysis {

// The rows of one request in one step, as if all dimensions of tokens were one.
struct RequestRows {
  std::string id;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t position = 0;  // of the first, in its request
  int64_t index = 0;     // among the requests of the step
};

struct StepTokens {
  DumpPlace place;
  // [batch, tokens] of a program with sequences of one length; batch is 1 and
  // `flat` set where all tokens lie behind one another.
  bool flat = false;
  int64_t batch = 1;
  int64_t tokens = 0;
  int64_t requests = 0;  // those that have one row each where dim0 is "last"
  std::vector<RequestRows> rows;
};

// `tokens_row`: the row whose shape is [tokens] or [batch, tokens].
// INVALID_ARGUMENT where a step has none, or there is more than one rank.
absl::StatusOr<std::vector<StepTokens>> ReadStepTokens(
    FileSystem* file_system, const DumpLayout& layout,
    const std::string& tokens_row);

// Steps with a requests.json, each by its first rank, whose requests those of the
// others are; `tokens` is not known. Other steps are left out.
absl::StatusOr<std::vector<StepTokens>> ReadStepRequests(
    FileSystem* file_system, const DumpLayout& layout);

// The id that `wanted` is, or is part of; the only one there is when `wanted`
// is empty. INVALID_ARGUMENT naming those there are.
absl::StatusOr<std::string> ChooseRequest(const std::vector<StepTokens>& steps,
                                          const std::string& path,
                                          const std::string& wanted);

// Null when the step has nothing of it.
const RequestRows* RowsOf(const StepTokens& step, const std::string& id);

// Rows [begin, end) of a tensor of the step.
absl::Status TakeTokens(const StepTokens& step, int64_t begin, int64_t end,
                        AlignedTensor* tensor);
// The row of the request's token `at`, of a tensor that has all tokens or the
// last of each request.
absl::Status TakeLast(const StepTokens& step, const RequestRows& request,
                      int64_t at, AlignedTensor* tensor);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ALIGN_TOKEN_ROWS_H_
