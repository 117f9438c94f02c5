// SPDX-License-Identifier: Apache-2.0
// `export` in a table format: statistics as columns, one row for each value.
#ifndef RANKPROBE_CLI_COMMANDS_EXPORT_VALUES_H_
#define RANKPROBE_CLI_COMMANDS_EXPORT_VALUES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/client/client.h"
#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

struct ValueExport {
  v1::ReadValuesRequest request;
  // One of ValueFormats().
  std::string format;
  // A path, or "-" for standard output, which requires kColumnsFormat.
  std::string output;
  // For tensorboard: an exported dump, whose tensors become histograms.
  std::string payloads;
};

inline constexpr char kColumnsFormat[] = "columns";
// Returns the formats that --format accepts besides the dump layout.
std::vector<std::string> ValueFormats();

// Sets `exit_code` to kPartial if rank-steps are incomplete or were deleted.
absl::Status ExportValues(const Globals& globals, const ValueExport& wanted,
                          int* exit_code);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_COMMANDS_EXPORT_VALUES_H_
