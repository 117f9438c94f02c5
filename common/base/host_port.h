// SPDX-License-Identifier: Apache-2.0
// "HOST:PORT" addresses. Pure functions.
#ifndef RANKPROBE_COMMON_BASE_HOST_PORT_H_
#define RANKPROBE_COMMON_BASE_HOST_PORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rankprobe {

struct HostPort {
  // A name, an IPv4 address, or an IPv6 address in brackets.
  std::string host;
  // 0 .. 65,535.
  int port = 0;
};

// INVALID_ARGUMENT with the text if it is not HOST:PORT. Port 0 is valid only
// for listening; pass `min_port` 1 for connecting.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, int min_port);

// Whether `host` can only be this machine: "localhost", 127.a.b.c, "[::1]".
bool IsLoopbackHost(absl::string_view host);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_HOST_PORT_H_
