// SPDX-License-Identifier: Apache-2.0
// One pass over a dump.json or debug.json, which may be larger than memory: what
// stands beside "data", and each entry in it. What every reader of these files
// is made of. Pure functions; the stream is the caller's. The file is not
// trusted.
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
// Of a dump that the ranks of a run were put together to (analysis/layout).
inline constexpr absl::string_view kPutTogetherKey = "put_together";

// Absent where the file says null or nothing.
struct DumpHead {
  std::optional<std::string> task, level, framework, dump_data_dir,
      put_together;
  // Keys of what tensors have beside the usual statistics; what is not a list of
  // strings is passed over.
  std::vector<std::string> extra_statistics;
};

// `entry` is called behind the name of each entry, in the order of the file and
// for equal names as often as they stand there; it consumes the entry's value
// from `stream`. `head` may be null. INVALID_ARGUMENT: no such file, which
// includes one without "data"; else an error of reading or of `entry`.
absl::Status WalkDump(
    JsonStream* stream, DumpHead* head,
    absl::FunctionRef<absl::Status(const std::string& name)> entry);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_DUMP_WALK_H_
