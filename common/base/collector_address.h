// SPDX-License-Identifier: Apache-2.0
// The address of a collector: "HOST:PORT", or on its own machine "unix:PATH" (a
// Unix socket in the file system) or "unix-abstract:NAME" (one without a file).
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
  // `path` is a name, and no file: whoever is in this network namespace can
  // connect, and can take the name when nobody listens there.
  bool is_abstract = false;
};

// Whether it has the form of one; what is a HOST:PORT for a host of the name
// "unix" is one to gRPC as well.
bool IsUnixAddress(absl::string_view address);

// INVALID_ARGUMENT naming the text that is none: without a path, with one of
// more bytes than the kernel takes, with control characters, or with a comma,
// at which gRPC splits lists of addresses.
absl::StatusOr<UnixAddress> ParseUnixAddress(absl::string_view text);

// INVALID_ARGUMENT naming an address that nobody can connect to.
absl::Status CheckCollectorAddress(absl::string_view address);

// As gRPC takes it: a URI for a Unix socket, others as they are.
std::string GrpcTarget(absl::string_view address);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_COLLECTOR_ADDRESS_H_
