// SPDX-License-Identifier: Apache-2.0
#include "collector/server/listening_sockets.h"

#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "collector/server/receive_bound.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/base/unix_socket.h"

namespace rankprobe {
namespace {

constexpr int kBacklog = 1024;
// Time limit for unacknowledged data of a peer that has vanished.
constexpr unsigned kUserTimeoutMs = 10000;

void Close(int* fd) {
  if (*fd >= 0) ::close(std::exchange(*fd, -1));
}

absl::StatusOr<int> ListenOn(const addrinfo& info, int port) {
  sockaddr_storage address{};
  std::memcpy(&address, info.ai_addr, info.ai_addrlen);
  if (info.ai_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&address)->sin_port =
        htons(static_cast<uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in6*>(&address)->sin6_port =
        htons(static_cast<uint16_t>(port));
  }
  int fd = ::socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                    IPPROTO_TCP);
  const int on = 1, off = 0;
  if (fd >= 0) PrepareReceiveBounds(fd);
  if (fd >= 0 && info.ai_family == AF_INET6)
    ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (fd < 0 ||
      ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(fd, reinterpret_cast<const sockaddr*>(&address),
             info.ai_addrlen) != 0 ||
      ::listen(fd, kBacklog) != 0) {
    const absl::Status status = absl::ErrnoToStatus(errno, "listen");
    Close(&fd);
    return status;
  }
  // Accepted sockets inherit the option.
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs,
               sizeof(kUserTimeoutMs));
  return fd;
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET
                   ? reinterpret_cast<sockaddr_in*>(&address)->sin_port
                   : reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
}

int OpenUnixSocket() {
  return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

// Removes the socket that a killed process left behind. Returns false if a
// process listens on it, or the file is not a socket.
bool RemoveLeft(const UnixAddress& where) {
  struct stat found {};
  if (where.is_abstract || ::lstat(where.path.c_str(), &found) != 0 ||
      !S_ISSOCK(found.st_mode))
    return false;
  sockaddr_un address;
  const socklen_t length =
      UnixSocketAddress(where.path, where.is_abstract, &address);
  int probe = OpenUnixSocket();
  const bool refused =
      probe >= 0 &&
      ::connect(probe, reinterpret_cast<const sockaddr*>(&address), length) !=
          0 &&
      errno == ECONNREFUSED;
  Close(&probe);
  return refused && ::unlink(where.path.c_str()) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ListeningSockets>> ListeningSockets::Open(
    const std::string& listen) {
  std::unique_ptr<ListeningSockets> sockets(new ListeningSockets());
  if (IsUnixAddress(listen)) {
    RP_ASSIGN_OR_RETURN(const UnixAddress where, ParseUnixAddress(listen));
    sockets->address_ = listen;
    RP_RETURN_IF_ERROR(sockets->OpenUnix(where));
  } else {
    RP_RETURN_IF_ERROR(sockets->OpenHostPort(listen));
  }
  return sockets;
}

ListeningSockets::~ListeningSockets() {
  // The file is removed before the socket is closed, so that no client finds a
  // file that refuses connections.
  struct stat found {};
  if (!file_.empty() && ::lstat(file_.c_str(), &found) == 0 &&
      found.st_dev == file_device_ && found.st_ino == file_inode_)
    ::unlink(file_.c_str());
  for (int fd : fds_) Close(&fd);
}

absl::Status ListeningSockets::OpenUnix(const UnixAddress& where) {
  is_unix_ = true;
  const int fd = OpenUnixSocket();
  if (fd < 0) return absl::UnavailableError("no descriptors are left");
  fds_.push_back(fd);
  // The mode of the file that bind creates, before the umask is applied.
  ::fchmod(fd, S_IRUSR | S_IWUSR);
  sockaddr_un address;
  const socklen_t length =
      UnixSocketAddress(where.path, where.is_abstract, &address);
  const auto bind = [&] {
    return ::bind(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0;
  };
  bool bound = bind();
  if (!bound && errno == EADDRINUSE) {
    if (!RemoveLeft(where)) {
      return absl::UnavailableError(absl::StrCat(
          "cannot listen on ", address_,
          ": taken by another process, or a file that is not a socket"));
    }
    bound = bind();
  }
  struct stat made {};
  if (bound && !where.is_abstract && ::lstat(where.path.c_str(), &made) == 0) {
    file_ = where.path;
    file_device_ = made.st_dev;
    file_inode_ = made.st_ino;
  }
  if (bound && ::listen(fd, kBacklog) == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address_, ": ", std::strerror(errno)));
}

absl::Status ListeningSockets::OpenHostPort(const std::string& listen) {
  RP_ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(listen, 0));
  std::string host = where.host;
  if (!host.empty() && host.front() == '[')
    host = host.substr(1, host.size() - 2);
  // Listens on every address, of both families if the machine has both.
  if (host == "0.0.0.0") host = "::";
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), "0", &hints, &found);
  const absl::Cleanup free_found = [&found] {
    if (found != nullptr) ::freeaddrinfo(found);
  };
  if (failed != 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", listen,
                                               ": ", ::gai_strerror(failed)));
  }
  port_ = where.port;
  absl::Status why = absl::UnavailableError("it has no address");
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    absl::StatusOr<int> fd = ListenOn(*info, port_);
    if (!fd.ok() && host == "::") {
      // This machine has no IPv6.
      sockaddr_in any{};
      any.sin_family = AF_INET;
      addrinfo v4{};
      v4.ai_family = AF_INET;
      v4.ai_addr = reinterpret_cast<sockaddr*>(&any);
      v4.ai_addrlen = sizeof(any);
      fd = ListenOn(v4, port_);
    }
    if (!fd.ok()) {
      why = fd.status();
      continue;
    }
    fds_.push_back(*fd);
    if (port_ == 0) port_ = PortOf(*fd);
  }
  address_ = absl::StrCat(where.host, ":", port_);
  if (!fds_.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "cannot listen on ", listen,
      ": taken by another process, or no address of this machine (",
      why.message(), ")"));
}

std::optional<uid_t> ForeignUser(int connected) {
  const std::optional<uid_t> peer = PeerUser(connected);
  if (peer == ::geteuid() || peer == uid_t{0}) return std::nullopt;
  return peer.value_or(static_cast<uid_t>(-1));
}

}  // namespace rankprobe
