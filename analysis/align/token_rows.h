// SPDX-License-Identifier: Apache-2.0
// Assignment of the rows of each step's tensors to tokens of requests. It
// follows requests.json where a serving step has one. Otherwise it follows the
// shape of the step's tokens: each line of the batch is one sequence, and
// positions continue from step to step. Immutable after Read.
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

// The rows of one request in one step, with all token dimensions flattened into
// one.
struct RequestRows {
  std::string id;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t position = 0;  // of the first, in its request
  int64_t index = 0;     // among the requests of the step
};

struct StepTokens {
  DumpPlace place;
  // Shape [batch, tokens] if all sequences of the program have the same length.
  // `flat` is set and batch is 1 if all tokens are concatenated.
  bool flat = false;
  int64_t batch = 1;
  int64_t tokens = 0;
  int64_t requests = 0;  // those with one row each where dim0 is "last"
  std::vector<RequestRows> rows;
};

// Reads the tokens of all steps. `tokens_row` names the row whose shape is
// [tokens] or [batch, tokens]. Returns INVALID_ARGUMENT if a step has no such
// row or more than one rank.
absl::StatusOr<std::vector<StepTokens>> ReadStepTokens(
    FileSystem* file_system, const DumpLayout& layout,
    const std::string& tokens_row);

// Reads the steps that have a requests.json from their first rank; the other
// ranks have the same requests. Leaves `tokens` unset and skips all other
// steps.
absl::StatusOr<std::vector<StepTokens>> ReadStepRequests(
    FileSystem* file_system, const DumpLayout& layout);

// Returns the id that equals or contains `wanted`, or the only id if `wanted`
// is empty. Returns INVALID_ARGUMENT with the existing ids otherwise.
absl::StatusOr<std::string> ChooseRequest(const std::vector<StepTokens>& steps,
                                          const std::string& path,
                                          const std::string& wanted);

// Returns null if the step has no rows of the request.
const RequestRows* RowsOf(const StepTokens& step, const std::string& id);

// Keeps the rows [begin, end) of a tensor of the step.
absl::Status TakeTokens(const StepTokens& step, int64_t begin, int64_t end,
                        AlignedTensor* tensor);
// Keeps the row of the request's token `at`. The tensor has either all tokens
// or the last token of each request.
absl::Status TakeLast(const StepTokens& step, const RequestRows& request,
                      int64_t at, AlignedTensor* tensor);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ALIGN_TOKEN_ROWS_H_
