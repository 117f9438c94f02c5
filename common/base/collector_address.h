// SPDX-License-Identifier: Apache-2.0
// The address of a collector: "HOST:PORT", or for a collector on this machine
// "unix:PATH" (a Unix socket in the file system) or "unix-abstract:NAME" (one
// without a file).
// Pure functions.
#ifndef RANKPROBE_COMMON_BASE_COLLECTOR_ADDRESS_H_
#define RANKPROBE_COMMON_BASE_COLLECTOR_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rankprobe {

struct UnixAddress {
  // The bytes of the name, unescaped. A relative path is relative to the
  // working directory.
  std::string path;
  // `path` is an abstract name, not a file: each process of this network
  // namespace can connect, and can listen on it while no other process does.
  bool is_abstract = false;
};

// Whether `address` has the prefix of a Unix socket. So does HOST:PORT for a
// host named "unix", which gRPC takes for a Unix socket as well.
bool IsUnixAddress(absl::string_view address);

// INVALID_ARGUMENT with the text if the path is missing, is longer than the
// kernel allows, or contains control characters or a comma, at which gRPC
// splits addresses.
absl::StatusOr<UnixAddress> ParseUnixAddress(absl::string_view text);

// INVALID_ARGUMENT, with the address, if it is not valid.
absl::Status CheckCollectorAddress(absl::string_view address);

// Extracts the reason of a failed connection from gRPC's text, which surrounds
// it with addresses and error numbers. Any other text is returned unchanged.
std::string WhyNotReached(absl::string_view text);

// The address in gRPC's form: a URI for a Unix socket, others unchanged.
std::string GrpcTarget(absl::string_view address);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_COLLECTOR_ADDRESS_H_
