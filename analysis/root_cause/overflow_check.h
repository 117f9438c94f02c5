// SPDX-License-Identifier: Apache-2.0
// `overflow_check`: where the first NaN or infinity of a step came from, over
// its ranks and through communication. Infinities that were meant (a mask) are
// none.
#ifndef RANKPROBE_ANALYSIS_ROOT_CAUSE_OVERFLOW_CHECK_H_
#define RANKPROBE_ANALYSIS_ROOT_CAUSE_OVERFLOW_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/root_cause/overflow_states.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"

namespace rankprobe::analysis {

struct OverflowOrigin {
  int64_t rank = 0;
  std::string call;
  // "NaN", "+Infinity"; empty when it came in from outside.
  std::string made;
  // "input.0", "parameters.weight": the first that held it then.
  std::string came_with;
  // A module comes before it, and no operator is recorded.
  bool is_between_modules = false;
  // The innermost module around it, as the model names it.
  std::string module;
  // From the outermost module to the call.
  std::vector<std::string> chain;
  // "train.py:13 in forward: x = ..": where the program calls it.
  std::string code_line;
  // "input.0 Max=.. Min=..", what went in and came out.
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::string details;  // JSON, as DescribeNode writes it
};

struct OverflowFindings {
  // That were looked at.
  size_t calls = 0;
  std::vector<OverflowOrigin> found;
  // Made a NaN or an infinity that was taken out again within the step. Only
  // where `found` is empty.
  std::vector<OverflowOrigin> ended;
};

// `path`: one step with its ranks, or one rank. Both lists are empty when
// nothing recorded overflowed. INVALID_ARGUMENT in one line for bad input and
// for a dump of several steps.
absl::StatusOr<OverflowFindings> CheckOverflow(FileSystem* file_system,
                                               const std::string& path,
                                               const OverflowKinds& kinds = {});
// Of these ranks of one step.
absl::StatusOr<OverflowFindings> CheckOverflow(FileSystem* file_system,
                                               const DumpLayout& layout,
                                               const OverflowKinds& kinds);

// Where a value came from that no recorded call made, and where to look for its cause:
// "no recorded call made it; it came in from outside with input.0, ..".
std::string CameInText(const OverflowOrigin& origin);

// The text of msprobe's anomaly_analyze_{time}.json: {"rank_0": [..], ..}.
std::string AnomalyJson(const std::vector<OverflowOrigin>& origins);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_OVERFLOW_CHECK_H_
