// SPDX-License-Identifier: Apache-2.0
#include "collector/server/connection_gate.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "collector/server/process_memory.h"
#include "collector/server/receive_bound.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// Intervals of the checks of unproven connections, and of memory.
constexpr int kWatchMs = 20;
constexpr int kIdleWatchMs = 50;
constexpr int64_t kMemoryLookNs = 50000000;
constexpr int64_t kTrimNs = 2000000000;
// Limits while memory is short.
constexpr size_t kTightUnproven = 16;
constexpr uint64_t kTightUnprovenBytes = 64 << 10;
constexpr int64_t kTightUnprovenNs = 5000000000;
// Limit between two checks. Slower connections do not fill memory.
constexpr uint64_t kLoudBytes = 256 << 10;
// What a connection that sends much may send until the next check while memory
// is short.
constexpr uint64_t kTightLoudBytes = 1 << 20;
// How long a peer may wait for its call to be authorized after it has sent as
// much as it may before that.
constexpr int64_t kHeldBackNs = 2'000'000'000;

void Close(int* fd) {
  if (*fd >= 0) ::close(std::exchange(*fd, -1));
}

// Returns gRPC's name for a peer, except for percent signs.
std::string PeerName(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &address, sizeof(v4));
    ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return absl::StrCat("ipv4:", text.data(), ":", ntohs(v4.sin_port));
  }
  sockaddr_in6 v6;
  std::memcpy(&v6, &address, sizeof(v6));
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    ::inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text.data(), text.size());
    return absl::StrCat("ipv4:", text.data(), ":", ntohs(v6.sin6_port));
  }
  ::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  return absl::StrCat("ipv6:[", text.data(), "]:", ntohs(v6.sin6_port));
}

// gRPC adds the zone of link-local addresses and escapes brackets.
std::string PlainPeer(absl::string_view peer) {
  std::string plain =
      absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  const size_t zone = plain.find('%');
  const size_t end = plain.find(']');
  if (zone != std::string::npos && end != std::string::npos && zone < end)
    plain.erase(zone, end - zone);
  return plain;
}

uint64_t ReceivedBytes(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return info.tcpi_bytes_received;
}

int64_t NowNs() { return SystemClock().MonotonicNanos(); }

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionGate>> ConnectionGate::Listen(
    Options options, const Logger* logger) {
  RP_ASSIGN_OR_RETURN(std::unique_ptr<ListeningSockets> sockets,
                      ListeningSockets::Open(options.listen));
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  const int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::unique_ptr<ConnectionGate> gate(new ConnectionGate(
      std::move(options), std::move(sockets), epoll, wake, logger));
  if (epoll < 0 || wake < 0)
    return absl::UnavailableError("no descriptors are left to listen with");
  return gate;
}

ConnectionGate::ConnectionGate(Options options,
                               std::unique_ptr<ListeningSockets> sockets,
                               int epoll, int wake, const Logger* logger)
    : options_(std::move(options)),
      sockets_(std::move(sockets)),
      epoll_(epoll),
      wake_(wake),
      log_(logger),
      reserve_(::open("/dev/null", O_RDONLY | O_CLOEXEC)) {}

ConnectionGate::~ConnectionGate() {
  Stop();
  absl::MutexLock lock(&mutex_);
  for (Connections* const list : {&unproven_, &proven_}) {
    for (Connection& connection : *list) Close(&connection.fd);
  }
  for (int fd : {epoll_, wake_, reserve_}) Close(&fd);
}

void ConnectionGate::Start(Hand hand) {
  hand_ = std::move(hand);
  std::vector<int> watched = sockets_->fds();
  watched.push_back(wake_);
  for (const int fd : watched) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
  }
  thread_ = std::thread([this] { Run(); });
}

void ConnectionGate::Stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  const uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof(one));
  thread_.join();
}

void ConnectionGate::Prove(absl::string_view peer) {
  const std::string name = PlainPeer(peer);
  absl::MutexLock lock(&mutex_);
  const auto it = by_peer_.find(name);
  if (it == by_peer_.end() || it->second->proven) return;
  it->second->proven = true;
  it->second->bound.Remove(it->second->fd);
  // From now on epoll only reports what it always does: that both sides are
  // shut down.
  epoll_event event{};
  event.data.fd = it->second->fd;
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, it->second->fd, &event);
  proven_.splice(proven_.end(), unproven_, it->second);
}

ConnectionGate::Stats ConnectionGate::stats() const {
  absl::MutexLock lock(&mutex_);
  Stats stats;
  stats.unproven = unproven_.size();
  stats.connections = unproven_.size() + proven_.size();
  stats.cut = cut_;
  stats.refused = refused_;
  for (const Connection& connection : proven_)
    stats.slowed += connection.bound.is_set() ? 1 : 0;
  return stats;
}

void ConnectionGate::Run() {
  std::array<epoll_event, 64> events;
  while (!stopping_) {
    int timeout_ms = kIdleWatchMs;
    {
      absl::MutexLock lock(&mutex_);
      if (!unproven_.empty() || tight_) timeout_ms = kWatchMs;
    }
    const int count = ::epoll_wait(epoll_, events.data(),
                                   static_cast<int>(events.size()), timeout_ms);
    bool starved = false;
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == wake_) continue;
      if (absl::c_linear_search(sockets_->fds(), fd)) {
        starved = !AcceptFrom(fd) || starved;
      } else if ((events[static_cast<size_t>(i)].events &
                  (EPOLLHUP | EPOLLERR)) != 0) {
        absl::MutexLock lock(&mutex_);
        Gone(fd);
      }
    }
    const int64_t now = NowNs();
    {
      absl::MutexLock lock(&mutex_);
      WatchUnproven(now);
    }
    if (now >= next_memory_look_ns_) WatchMemory(now);
    // Descriptors are freed once gRPC has noticed closed connections.
    if (starved) ::usleep(kWatchMs * 1000);
  }
}

bool ConnectionGate::AcceptFrom(int listener) {
  // A few at a time, so that closed connections are handled in between.
  for (int i = 0; i < 16; ++i) {
    const int fd =
        ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      Take(fd);
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS &&
        errno != ENOMEM)
      continue;  // The peer has disconnected already.
    absl::MutexLock lock(&mutex_);
    if (!CutOldestUnproven(Reason::kDescriptors) && reserve_ >= 0) {
      // There is no connection to close: the new one is accepted and closed.
      Close(&reserve_);
      int refused = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      Close(&refused);
      reserve_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
      ++refused_;
      LogCut(Reason::kDescriptors, "");
    }
    return false;
  }
  return true;
}

void ConnectionGate::TakeLocal(int fd) {
  const std::optional<uid_t> stranger = ForeignUser(fd);
  int copy = stranger.has_value() ? -1 : ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  bool refuse = copy < 0;
  {
    absl::MutexLock lock(&mutex_);
    const bool full = proven_.size() >= options_.max_connections;
    if (stranger.has_value() || full) {
      ++refused_;
      LogCut(full ? Reason::kTooMany : Reason::kAnotherUser,
             stranger.has_value() ? absl::StrCat("unix:user ", *stranger)
                                  : "unix:");
      refuse = true;
    } else if (!refuse) {
      Connection& connection = proven_.emplace_back();
      connection.fd = copy;
      connection.peer = "unix:";
      connection.accepted_ns = NowNs();
      connection.proven = true;
      by_fd_[copy] = std::prev(proven_.end());
      // Without events epoll only reports that both sides are shut down.
      epoll_event event{};
      event.data.fd = copy;
      ::epoll_ctl(epoll_, EPOLL_CTL_ADD, copy, &event);
    }
  }
  if (refuse) {
    Close(&copy);
    ::close(fd);
    return;
  }
  hand_(fd);
}

void ConnectionGate::Take(int fd) {
  if (sockets_->is_unix()) return TakeLocal(fd);
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  int copy = -1;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0)
    copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) {
    ::close(fd);
    return;
  }
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  bool refuse = false;
  {
    absl::MutexLock lock(&mutex_);
    const size_t most = tight_ ? kTightUnproven : options_.max_unproven;
    if (unproven_.size() >= most) CutOldestUnproven(Reason::kTooManyUnproven);
    refuse = unproven_.size() + proven_.size() >= options_.max_connections &&
             !CutOldestUnproven(Reason::kTooMany);
    const std::string peer = PeerName(address);
    if (refuse) {
      ++refused_;
      LogCut(Reason::kTooMany, peer);
    } else {
      Connection& connection = unproven_.emplace_back();
      connection.fd = copy;
      connection.peer = peer;
      connection.accepted_ns = NowNs();
      by_fd_[copy] = by_peer_[peer] = std::prev(unproven_.end());
      // The kernel enforces the limit, so that a flood stays within it even if
      // the gate is scheduled late on a busy machine.
      connection.bound = ReceiveBound(copy);
      connection.bound.Set(copy, MostUnprovenBytes());
      // Each arrival of data wakes the gate, which checks the connection.
      epoll_event event{};
      event.events = EPOLLIN | EPOLLET;
      event.data.fd = copy;
      ::epoll_ctl(epoll_, EPOLL_CTL_ADD, copy, &event);
    }
  }
  if (refuse) {
    ::close(copy);
    ::close(fd);
    return;
  }
  hand_(fd);
}

void ConnectionGate::Gone(int fd) {
  const auto it = by_fd_.find(fd);
  if (it == by_fd_.end()) return;
  const Connections::iterator connection = it->second;
  by_fd_.erase(it);
  // The same peer may have connected again meanwhile.
  const auto named = by_peer_.find(connection->peer);
  if (named != by_peer_.end() && named->second == connection)
    by_peer_.erase(named);
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  Close(&connection->fd);
  (connection->proven ? proven_ : unproven_).erase(connection);
}

void ConnectionGate::Cut(Connection* connection, Reason reason) {
  ++cut_;
  ::shutdown(connection->fd, SHUT_RDWR);
  LogCut(reason, connection->peer);
  Gone(connection->fd);
}

bool ConnectionGate::CutOldestUnproven(Reason reason) {
  if (unproven_.empty()) return false;
  Cut(&unproven_.front(), reason);
  return true;
}

uint64_t ConnectionGate::MostUnprovenBytes() const {
  return tight_ ? std::min(kTightUnprovenBytes, options_.unproven_bytes)
                : options_.unproven_bytes;
}

void ConnectionGate::WatchUnproven(int64_t now_ns) {
  const int64_t time = tight_
                           ? kTightUnprovenNs
                           : absl::ToInt64Nanoseconds(options_.unproven_time);
  const uint64_t bytes = MostUnprovenBytes();
  while (tight_ && unproven_.size() > kTightUnproven)
    CutOldestUnproven(Reason::kMemory);
  for (auto it = unproven_.begin(); it != unproven_.end();) {
    Connection& connection = *it++;
    if (now_ns - connection.accepted_ns >= time) {
      Cut(&connection, Reason::kUnprovenTooLong);
    } else if (ReceivedBytes(connection.fd) > bytes &&
               IsTooLoud(now_ns, &connection)) {
      Cut(&connection, Reason::kUnprovenTooLoud);
    }
  }
}

// The first message of a call may be larger than the limit, and arrive before
// the call is authorized: the kernel holds the rest back until then.
bool ConnectionGate::IsTooLoud(int64_t now_ns, Connection* connection) const {
  if (tight_ || !connection->bound.is_set()) return true;
  if (connection->at_bound_ns == 0) connection->at_bound_ns = now_ns;
  return now_ns - connection->at_bound_ns >= kHeldBackNs;
}

void ConnectionGate::WatchMemory(int64_t now_ns) {
  next_memory_look_ns_ = now_ns + kMemoryLookNs;
  uint64_t in_use = options_.memory_in_use == nullptr
                        ? ResidentBytes()
                        : options_.memory_in_use();
  if (options_.memory_in_use == nullptr && in_use > options_.memory_bytes) {
    // Memory that was freed and not returned to the kernel does not count as
    // used.
    in_use = std::min(in_use, HeapInUse());
    if (in_use <= options_.memory_bytes && now_ns >= next_trim_ns_) {
      GiveFreedMemoryBack();
      next_trim_ns_ = NowNs() + kTrimNs;
    }
  }
  const uint64_t before = std::exchange(in_use_before_, in_use);
  const uint64_t hard = options_.memory_bytes + options_.memory_bytes / 4;
  absl::MutexLock lock(&mutex_);
  const bool was_tight = std::exchange(tight_, in_use > options_.memory_bytes);
  // The first check only provides the numbers that the next one compares with.
  // While memory use falls, the connections that were closed last are still
  // being freed.
  if (tight_) SlowLoud(/*cut=*/was_tight && in_use > hard && in_use >= before);
  if (tight_ || !was_tight) return;
  for (Connection& connection : proven_) connection.bound.Remove(connection.fd);
}

void ConnectionGate::SlowLoud(bool cut) {
  Connection* loudest = nullptr;
  uint64_t most = kLoudBytes;
  for (Connection& connection : proven_) {
    const uint64_t received = ReceivedBytes(connection.fd);
    const uint64_t bytes =
        received - std::min(received, connection.received_before);
    // The next check may be late, so the limit is set now. For a connection
    // with a limit the count begins when it was set: between two checks it
    // would no longer appear to send much.
    if (bytes >= kLoudBytes || connection.bound.is_set())
      connection.bound.Set(connection.fd, received + kTightLoudBytes);
    if (!connection.bound.is_set()) connection.received_before = received;
    if (bytes < most) continue;
    most = bytes;
    loudest = &connection;
  }
  if (loudest == nullptr) return;
  if (cut) {
    Cut(loudest, Reason::kMemory);
  } else {
    log_.Log(
        Logger::Severity::kWarning, "memory_short",
        {{"loudest", loudest->peer},
         {"what_happens",
          "clients that send much data are slowed down (--memory-bytes)"}});
  }
}

void ConnectionGate::LogCut(Reason reason, const std::string& peer) {
  constexpr absl::string_view kReasons[] = {
      "too many connections without a call",
      "no call within its time",
      "data without a call",
      "the process holds too much memory (--memory-bytes)",
      "no descriptors are left (ulimit -n)",
      "too many connections",
      "another user's, and this Unix socket is for one user and root",
  };
  log_.Log(Logger::Severity::kWarning, "connection_cut",
           {{"peer", peer},
            {"reason", std::string(kReasons[static_cast<int>(reason)])}});
}

}  // namespace rankprobe
