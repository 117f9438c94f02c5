// SPDX-License-Identifier: Apache-2.0
// One pass over a dump.json or debug.json, which may be larger than memory: the
// members beside "data", and each entry in it. All readers of these files use
// it. Pure functions; the stream is the caller's. The file is not trusted.
#ifndef RANKPROBE_DUMP_FORMAT_DUMP_WALK_H_
#define RANKPROBE_DUMP_FORMAT_DUMP_WALK_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dump_format/json_stream.h"

namespace rankprobe {

inline constexpr absl::string_view kExtraStatisticsKey = "extra_statistics";
// Key of a dump that was assembled from the ranks of a run (analysis/layout).
inline constexpr absl::string_view kPutTogetherKey = "put_together";

// Absent if the file has null or no such member.
struct DumpHead {
  std::optional<std::string> task, level, framework, dump_data_dir,
      put_together;
  // Keys of the statistics that tensors have besides the usual ones. Anything
  // but a list of strings is ignored.
  std::vector<std::string> extra_statistics;
};

// `entry` is called after the name of each entry, in the order of the file, for
// equal names each time; it must consume the entry's value from `stream`.
// `head` may be null. INVALID_ARGUMENT: not such a file, for example one
// without "data". Otherwise returns an error of reading or of `entry`.
absl::Status WalkDump(
    JsonStream* stream, DumpHead* head,
    absl::FunctionRef<absl::Status(const std::string& name)> entry);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_DUMP_WALK_H_
