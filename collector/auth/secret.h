// SPDX-License-Identifier: Apache-2.0
// Stored form of a secret; same_bytes.h compares it. Pure functions.
#ifndef RANKPROBE_COLLECTOR_AUTH_SECRET_H_
#define RANKPROBE_COLLECTOR_AUTH_SECRET_H_

#include <string>

#include "absl/strings/string_view.h"

namespace rankprobe {

// Returns 32 bytes.
std::string Sha256(absl::string_view data);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_AUTH_SECRET_H_
