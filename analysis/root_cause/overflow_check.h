// SPDX-License-Identifier: Apache-2.0
// `overflow_check`: where the first NaN or infinity of a step came from, over
// its ranks and through communication.
#ifndef RANKPROBE_ANALYSIS_ROOT_CAUSE_OVERFLOW_CHECK_H_
#define RANKPROBE_ANALYSIS_ROOT_CAUSE_OVERFLOW_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/file_system.h"

namespace rankprobe::analysis {

struct OverflowOrigin {
  int64_t rank = 0;
  std::string call;
  std::string details;  // JSON, as DescribeNode writes it
};

// `path`: one step with its ranks, or one rank. Empty when nothing recorded
// overflowed. INVALID_ARGUMENT in one line for bad input and for a dump of
// several steps.
absl::StatusOr<std::vector<OverflowOrigin>> CheckOverflow(
    FileSystem* file_system, const std::string& path);

// The text of msprobe's anomaly_analyze_{time}.json: {"rank_0": [..], ..}.
std::string AnomalyJson(const std::vector<OverflowOrigin>& origins);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_OVERFLOW_CHECK_H_
