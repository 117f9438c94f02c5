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

// Returns `json` with this request_id in the section of its task; an empty one
// removes it, which selects all requests. INVALID_ARGUMENT if `json` is not a
// config, or has a task or level that cannot select rows.
absl::StatusOr<std::string> ConfigForRequest(absl::string_view json,
                                             absl::string_view request_id);

// Returns `json` with this dump_path if it has none, added at the end so that
// the places of faults stay the same. A text that is not a JSON object is
// returned unchanged.
std::string WithDumpPath(absl::string_view json, absl::string_view dump_path);

// Returns `json` with these ranks instead of its own. A text that is not a JSON
// object is returned unchanged.
std::string WithRanks(absl::string_view json,
                      const std::vector<int64_t>& ranks);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_CONFIG_REQUEST_CONFIG_H_
