// SPDX-License-Identifier: Apache-2.0
#include "common/base/unix_socket.h"

#include <cstddef>
#include <cstring>

namespace rankprobe {

socklen_t UnixSocketAddress(absl::string_view path, bool is_abstract,
                            sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const size_t before = is_abstract ? 1 : 0, behind = is_abstract ? 0 : 1;
  std::memcpy(address->sun_path + before, path.data(), path.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + before +
                                path.size() + behind);
}

std::optional<uid_t> PeerUser(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
      length != sizeof(peer))
    return std::nullopt;
  return peer.uid;
}

}  // namespace rankprobe
