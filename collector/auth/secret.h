// What is kept of a secret, and how two are compared. Pure functions.
#ifndef RANKPROBE_COLLECTOR_AUTH_SECRET_H_
#define RANKPROBE_COLLECTOR_AUTH_SECRET_H_

#include <string>

#include "absl/strings/string_view.h"

namespace rankprobe {

// 32 bytes.
std::string Sha256(absl::string_view data);

// Takes the same time wherever two texts of one length differ.
bool SameBytes(absl::string_view a, absl::string_view b);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_AUTH_SECRET_H_
