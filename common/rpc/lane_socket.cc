// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/lane_socket.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/random_bytes.h"
#include "common/base/unix_socket.h"

namespace rankprobe {
namespace {

constexpr absl::string_view kPrefix = "rankprobe-lane-";
constexpr size_t kNameBytes = 16;
// More than one is an error, but all must be closed.
constexpr size_t kMaxDescriptors = 8;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

absl::Status Failed(const char* call) {
  return absl::UnavailableError(absl::StrCat(call, ": ", std::strerror(errno)));
}

int OpenSocket(int flags) {
  return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
}

// Limits the duration of calls on the socket.
bool SetTimeout(int socket, absl::Duration timeout) {
  const timeval time = absl::ToTimeval(timeout);
  return ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)) ==
             0 &&
         ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)) ==
             0;
}

template <typename Call>
auto Retried(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

std::string NewLaneName() {
  return absl::StrCat(kPrefix, absl::BytesToHexString(RandomBytes(kNameBytes)));
}

bool IsLaneName(absl::string_view untrusted) {
  return untrusted.size() == kPrefix.size() + 2 * kNameBytes &&
         absl::StartsWith(untrusted, kPrefix) &&
         std::all_of(untrusted.begin() + kPrefix.size(), untrusted.end(),
                     absl::ascii_isxdigit);
}

absl::StatusOr<int> ListenLane(absl::string_view name) {
  if (!IsLaneName(name)) return absl::InvalidArgumentError("no name of a lane");
  Descriptor socket(OpenSocket(SOCK_NONBLOCK));
  if (socket.get() < 0) return Failed("socket");
  sockaddr_un address;
  const socklen_t length =
      UnixSocketAddress(name, /*is_abstract=*/true, &address);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address),
             length) != 0)
    return Failed("bind");
  if (::listen(socket.get(), 64) != 0) return Failed("listen");
  return socket.Release();
}

bool IsOwnUser(int socket) { return PeerUser(socket) == ::geteuid(); }

absl::Status HandOver(absl::string_view untrusted_name,
                      absl::string_view session, int fd,
                      absl::Duration timeout) {
  if (!IsLaneName(untrusted_name) || session.empty() ||
      session.size() > kMaxLaneSessionBytes)
    return absl::UnavailableError("the collector offers none");
  const Descriptor socket(OpenSocket(0));
  if (socket.get() < 0 || !SetTimeout(socket.get(), timeout))
    return Failed("socket");
  sockaddr_un address;
  const socklen_t length =
      UnixSocketAddress(untrusted_name, /*is_abstract=*/true, &address);
  if (Retried([&] {
        return ::connect(socket.get(),
                         reinterpret_cast<const sockaddr*>(&address), length);
      }) != 0) {
    if (errno == ECONNREFUSED)
      return absl::UnavailableError("the collector is not on this host");
    return Failed("connect");
  }
  // Checked before anything is sent: any process may listen on an abstract
  // name.
  if (!IsOwnUser(socket.get()))
    return absl::PermissionDeniedError("the collector is another user's");
  iovec text{const_cast<char*>(session.data()), session.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &fd, sizeof(int));
  if (Retried([&] { return ::sendmsg(socket.get(), &message, MSG_NOSIGNAL); }) <
      0)
    return Failed("sendmsg");
  std::array<char, kMaxLaneAnswerBytes> answer;
  const ssize_t n = Retried(
      [&] { return ::recv(socket.get(), answer.data(), answer.size(), 0); });
  if (n < 0 && errno == EAGAIN)
    return absl::UnavailableError("the collector does not answer");
  if (n < 0) return Failed("recv");
  const absl::string_view said(answer.data(), static_cast<size_t>(n));
  if (said == kLaneTaken) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "the collector refuses: ", said.empty() ? "no reason given" : said));
}

absl::StatusOr<HandedOver> ReceiveHandedOver(int socket) {
  // One byte more than legal, so that a longer packet is detected.
  std::array<char, kMaxLaneSessionBytes + 1> text;
  iovec io{text.data(), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxDescriptors)>
      control{};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n =
      ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) {
    return errno == EAGAIN || errno == EINTR
               ? absl::UnavailableError("nothing has come")
               : absl::InvalidArgumentError(std::strerror(errno));
  }
  std::vector<int> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
      continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.push_back(fd);
    }
  }
  const bool whole = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  if (!whole || n == 0 || static_cast<size_t>(n) > kMaxLaneSessionBytes ||
      fds.size() != 1) {
    for (const int fd : fds) ::close(fd);
    return absl::InvalidArgumentError(
        "a session's name and one descriptor are to come");
  }
  return HandedOver{std::string(text.data(), static_cast<size_t>(n)), fds[0]};
}

}  // namespace rankprobe
