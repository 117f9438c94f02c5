// SPDX-License-Identifier: Apache-2.0
// A config.json for a running job: for one request of a server, and without a
// dump_path. Pure functions.
#ifndef RANKPROBE_COMMON_CONFIG_REQUEST_CONFIG_H_
#define RANKPROBE_COMMON_CONFIG_REQUEST_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rankprobe {

// `json` with this request_id in the section of its task; with an empty one
// without any: all requests. INVALID_ARGUMENT: no config, or one of a task or
// level of which no rows are cut.
absl::StatusOr<std::string> ConfigForRequest(absl::string_view json,
                                             absl::string_view request_id);

// `json` with this dump_path where it has none, at its end, so that the places
// of faults stay. What is no JSON object is returned as it is.
std::string WithDumpPath(absl::string_view json, absl::string_view dump_path);

// `json` with these ranks in the place of its own. What is no JSON object is
// returned as it is.
std::string WithRanks(absl::string_view json,
                      const std::vector<int64_t>& ranks);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_CONFIG_REQUEST_CONFIG_H_
