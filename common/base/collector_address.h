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
  // Its bytes as they are. A relative path is seen from the working directory.
  std::string path;
  // `path` is an abstract name, not a file: each process of this network
  // namespace can connect, and can listen on it while no other process does.
  bool is_abstract = false;
};

// Whether `address` begins as that of a Unix socket. So does HOST:PORT for a host
// named "unix", which gRPC takes for a Unix socket as well.
bool IsUnixAddress(absl::string_view address);

// INVALID_ARGUMENT with the text: the path is missing, longer than the kernel
// allows, or has control characters or a comma, at which gRPC splits addresses.
absl::StatusOr<UnixAddress> ParseUnixAddress(absl::string_view text);

// INVALID_ARGUMENT with an address that is not valid.
absl::Status CheckCollectorAddress(absl::string_view address);

// Why nobody is reached, of gRPC's text, in which addresses and numbers of errors
// surround it. A text of another kind stays as it is.
std::string WhyNotReached(absl::string_view text);

// As gRPC takes it: a URI for a Unix socket, others as they are.
std::string GrpcTarget(absl::string_view address);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_COLLECTOR_ADDRESS_H_
