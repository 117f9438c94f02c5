// SPDX-License-Identifier: Apache-2.0
// Batches of statistics as a stream of bytes that another program reads without
// knowing protobuf (docs/formats.md, "Stream of values"). Pure functions.
#ifndef RANKPROBE_CLI_OUTPUT_VALUE_STREAM_H_
#define RANKPROBE_CLI_OUTPUT_VALUE_STREAM_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

// Returns the beginning of the stream.
std::string ValueStreamHead(absl::string_view run);
// Returns DATA_LOSS if the length of a column differs from that of the batch.
absl::Status AppendValueFrame(const v1::ValueBatch& batch, std::string* out);
// Appends the end; a stream without it is truncated.
void AppendValueEnd(const v1::ValuesEnd& end, std::string* out);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_VALUE_STREAM_H_
