// SPDX-License-Identifier: Apache-2.0
// `query --over-ranks` and `query --names`. Failure: the collector's errors,
// INVALID_ARGUMENT for flags that cannot be combined, DATA_LOSS for an answer
// that cannot be read.
#ifndef RANKPROBE_CLI_COMMANDS_QUERY_SERIES_H_
#define RANKPROBE_CLI_COMMANDS_QUERY_SERIES_H_

#include <cstddef>

#include "absl/status/status.h"
#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

// `limit` is the number of rows; 0 means all.
absl::Status PrintOverRanks(const Globals& globals,
                            const v1::QueryGridRequest& grid, size_t limit,
                            bool csv, int* exit_code);
absl::Status PrintNames(const Globals& globals,
                        const v1::QueryGridRequest& grid, size_t limit,
                        bool csv);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_COMMANDS_QUERY_SERIES_H_
