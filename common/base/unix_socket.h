// SPDX-License-Identifier: Apache-2.0
// Addresses of Unix sockets in the kernel's form, and the user of a peer.
// Pure functions, except for the query to the kernel.
#ifndef RANKPROBE_COMMON_BASE_UNIX_SOCKET_H_
#define RANKPROBE_COMMON_BASE_UNIX_SOCKET_H_

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <optional>

#include "absl/strings/string_view.h"

namespace rankprobe {

// Fills `address` and returns its length. `path` may have at most 107 bytes. An
// abstract name has no file and is preceded by a zero byte.
socklen_t UnixSocketAddress(absl::string_view path, bool is_abstract,
                            sockaddr_un* address);

// The user of the process on the other side of a connected Unix socket; nullopt
// if the kernel does not report it.
std::optional<uid_t> PeerUser(int socket);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_UNIX_SOCKET_H_
