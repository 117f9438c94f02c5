// SPDX-License-Identifier: Apache-2.0
// `overflow_check`: the origin of the first NaN or infinity of a step, over its
// ranks and through communication. Intended infinities (a mask) are not faults.
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
  // "NaN" or "+Infinity"; empty if the value came from outside.
  std::string made;
  // The first input or parameter that held a value from outside: "input.0",
  // "parameters.weight".
  std::string came_with;
  // The call follows a module, and no operator was recorded in between.
  bool is_between_modules = false;
  // The innermost module around the call, by its name in the model.
  std::string module;
  // Entries from the outermost module to the call.
  std::vector<std::string> chain;
  // The program's line that makes the call: "train.py:13 in forward: x = ..".
  std::string code_line;
  // Inputs and outputs of the call, such as "input.0 Max=.. Min=..".
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::string details;  // JSON, as DescribeNode writes it
};

struct OverflowFindings {
  // Number of calls that were checked.
  size_t calls = 0;
  std::vector<OverflowOrigin> found;
  // Calls that made a NaN or an infinity that was removed again within the
  // step. Set only if `found` is empty.
  std::vector<OverflowOrigin> ended;
};

// Checks `path`, which is one step with its ranks, or one rank. Both lists are
// empty if nothing recorded overflowed. Returns INVALID_ARGUMENT with one line
// for bad input and for a dump of several steps.
absl::StatusOr<OverflowFindings> CheckOverflow(FileSystem* file_system,
                                               const std::string& path,
                                               const OverflowKinds& kinds = {});
// Checks the given ranks of one step.
absl::StatusOr<OverflowFindings> CheckOverflow(FileSystem* file_system,
                                               const DumpLayout& layout,
                                               const OverflowKinds& kinds);

// Describes where a value came from that no recorded call made, and where to
// look for its cause: "no recorded call made it; it came in from outside with
// input.0, ..".
std::string CameInText(const OverflowOrigin& origin);

// Returns the text of msprobe's anomaly_analyze_{time}.json: {"rank_0": [..],
// ..}.
std::string AnomalyJson(const std::vector<OverflowOrigin>& origins);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_OVERFLOW_CHECK_H_
