// SPDX-License-Identifier: Apache-2.0
// Stored account of a refused frame: its number, the reason, and its content as
// far as that can be read. Pure functions.
#ifndef RANKPROBE_COLLECTOR_INGEST_REFUSAL_H_
#define RANKPROBE_COLLECTOR_INGEST_REFUSAL_H_

#include <cstddef>

#include "absl/strings/string_view.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {

inline constexpr size_t kMaxRefusalReasonBytes = 500;

// `untrusted` may be empty except for its number. The row is valid UTF-8
// whatever the reason quotes, and bounded.
v1::RefusalRow RefusalOf(const v1::UploadFrame& untrusted,
                         absl::string_view reason);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_REFUSAL_H_
