// SPDX-License-Identifier: Apache-2.0
// Format versions of the index and upgrades of older ones.
//
// Rule: a collector opens its own version and every older one, which it
// upgrades once, at open; it refuses a newer one and changes nothing. An
// upgrade may be interrupted at any point and is repeated from the start: each
// step writes the same rows again.
//   1  first
//   2  references to payloads (table f), losses by reason in StepRow
//   3  chunks may be compressed (ChunkRow.compressed_bytes)
//   4  chunks of unfinished payloads by sender (table q), segments that the
//      index has named (table g), the place synced last (y). A payload that
//      version 3 had not finished stays unfinished.
//   5  rollups (tables a, h, n, o)
//   6  summaries (table j)
//   7  numbers of rollups and summaries may be packed. Rows of older versions
//      stay as they are: each records its encoding.
//   8  rows of summaries may hold the heads of their steps
//   9  records with a checksum (Record.crc32c). Those of older versions get
//   one.
#ifndef RANKPROBE_COLLECTOR_STORE_UPGRADE_H_
#define RANKPROBE_COLLECTOR_STORE_UPGRADE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "collector/store/index.h"

namespace rankprobe {

inline constexpr char kSchemaVersion[] = "9";

// FAILED_PRECONDITION for an unknown version. `version` is empty for a new
// archive.
absl::Status BringUpToDate(Index* index, absl::string_view version);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_UPGRADE_H_
