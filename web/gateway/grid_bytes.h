// SPDX-License-Identifier: Apache-2.0
// Binary encoding of a grid: for a picture of a million cells JSON would be
// most of the work on both sides. All numbers are little-endian. A frame is
//   u32 kind, u32 bytes of what follows
// kind 0: the GridHead as JSON; kind 2: the output of ErrorJson, the last
// frame; kind 1: a row,
//   u32 flags, u32 columns, u32 bytes of the name, the name,
//   cells (float32; float64 with flag 1), counts (u32), non_finite (u32),
//   ranks (i32)
// where flags 2, 4 and 8 mean that counts, non_finite and ranks are one number
// for all columns. Pure functions; web/app/grid.ts reads it.
#ifndef RANKPROBE_WEB_GATEWAY_GRID_BYTES_H_
#define RANKPROBE_WEB_GATEWAY_GRID_BYTES_H_

#include <string>

#include "absl/status/status.h"
#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

inline constexpr char kGridType[] = "application/octet-stream";

// Appends a frame. Returns INTERNAL if the reply is not valid, for example if
// the lists of a row differ in length.
absl::Status AppendGridFrame(const v1::GridReply& reply, std::string* out);
void AppendGridError(const absl::Status& status, std::string* out);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_GATEWAY_GRID_BYTES_H_
