// SPDX-License-Identifier: Apache-2.0
// Numbers as float32, where that says what they are. Free functions.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_PACKED_ROW_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_PACKED_ROW_H_

#include <string>

#include "absl/types/span.h"
#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

// Little-endian float32, rounded; a NaN where `counts` is 0. False: one of the
// numbers would become infinite or 0 that is neither, and `out` is empty.
bool PackFloats(absl::Span<const double> numbers,
                absl::Span<const uint32_t> counts, std::string* out);

// `packed` in place of `cells` where that is possible.
void PackRow(v1::GridRow* row);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_PACKED_ROW_H_
