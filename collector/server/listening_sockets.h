// SPDX-License-Identifier: Apache-2.0
// The sockets that a collector listens on: those of a HOST:PORT (one for each
// address of the host), or one Unix socket (common/base/collector_address.h).
//
// The file of a Unix socket has mode 0600. A socket that a killed process left
// behind is replaced. A socket on which a process listens, and a file that is
// not a socket, are left unchanged. The destructor removes the file.
//
// Ownership: of the descriptors and the file. Threads: one. Failure:
// UNAVAILABLE if the address is taken or cannot be listened on.
#ifndef RANKPROBE_COLLECTOR_SERVER_LISTENING_SOCKETS_H_
#define RANKPROBE_COLLECTOR_SERVER_LISTENING_SOCKETS_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/collector_address.h"

namespace rankprobe {

class ListeningSockets {
 public:
  static absl::StatusOr<std::unique_ptr<ListeningSockets>> Open(
      const std::string& listen);
  ~ListeningSockets();
  ListeningSockets(const ListeningSockets&) = delete;
  ListeningSockets& operator=(const ListeningSockets&) = delete;

  // At least one.
  const std::vector<int>& fds() const { return fds_; }
  // 0 for a Unix socket, which has none.
  int port() const { return port_; }
  // The `listen` argument, with the port that was taken.
  const std::string& address() const { return address_; }
  bool is_unix() const { return is_unix_; }

 private:
  ListeningSockets() = default;
  absl::Status OpenHostPort(const std::string& listen);
  absl::Status OpenUnix(const UnixAddress& where);

  std::vector<int> fds_;
  int port_ = 0;
  std::string address_;
  bool is_unix_ = false;
  // Empty if this object has not created a file.
  std::string file_;
  dev_t file_device_ = 0;
  ino_t file_inode_ = 0;
};

// Returns the user of the peer of a connected Unix socket, if it is neither
// this process' user nor root: an abstract name has no permissions, and those
// of a directory may be wider than intended. (uid_t)-1 if the kernel does not
// report it.
std::optional<uid_t> ForeignUser(int connected);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_LISTENING_SOCKETS_H_
