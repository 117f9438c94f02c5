// SPDX-License-Identifier: Apache-2.0
// Numbers as float32, if that does not change their meaning. Free functions.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_PACKED_ROW_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_PACKED_ROW_H_

#include <string>

#include "absl/types/span.h"
#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

// Writes little-endian float32, rounded; a NaN where `counts` is 0. Returns
// false, with `out` empty, if a number would become infinite or 0 and is not.
bool PackFloats(absl::Span<const double> numbers,
                absl::Span<const uint32_t> counts, std::string* out);

// Replaces `cells` by `packed` if that is possible.
void PackRow(v1::GridRow* row);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_PACKED_ROW_H_
