// SPDX-License-Identifier: Apache-2.0
#include "collector/rpc/lane_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/lane_socket.h"

namespace rankprobe {
namespace {

// Interval of retries when connections could not be accepted.
constexpr absl::Duration kAgain = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<std::unique_ptr<LaneServer>> LaneServer::Start(
    const Options& options) {
  std::string name = NewLaneName();
  RP_ASSIGN_OR_RETURN(const int listening, ListenLane(name));
  const int stopping = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stopping < 0) {
    ::close(listening);
    return absl::UnavailableError("eventfd fails");
  }
  return std::unique_ptr<LaneServer>(
      new LaneServer(options, std::move(name), listening, stopping));
}

LaneServer::LaneServer(const Options& options, std::string name, int listening,
                       int stopping)
    : options_(options),
      name_(std::move(name)),
      listening_(listening),
      stopping_(stopping),
      thread_([this] { Run(); }) {}

LaneServer::~LaneServer() {
  const uint64_t one = 1;
  while (::write(stopping_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  thread_.join();
  for (const Connection& connection : connections_) ::close(connection.fd);
  ::close(listening_);
  ::close(stopping_);
}

void LaneServer::Expect(const std::string& session) {
  absl::MutexLock lock(&mutex_);
  sessions_.try_emplace(session);
}

void LaneServer::Forget(const std::string& session) {
  absl::MutexLock lock(&mutex_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  if (it->second != nullptr) --lanes_;
  sessions_.erase(it);
}

std::shared_ptr<const SharedMemoryReader> LaneServer::Find(
    const std::string& session) const {
  absl::MutexLock lock(&mutex_);
  const auto it = sessions_.find(session);
  return it == sessions_.end() ? nullptr : it->second;
}

size_t LaneServer::lanes() const {
  absl::MutexLock lock(&mutex_);
  return lanes_;
}

void LaneServer::Run() {
  std::vector<pollfd> polled;
  for (;;) {
    // If descriptors have run out, the listening socket is not polled, to avoid
    // a busy loop.
    const bool accepts = !std::exchange(full_, false);
    polled.assign(1, {stopping_, POLLIN, 0});
    absl::Duration timeout = accepts ? absl::InfiniteDuration() : kAgain;
    for (const Connection& connection : connections_) {
      polled.push_back({connection.fd, POLLIN, 0});
      timeout = std::min(timeout, Until(connection.until));
    }
    if (accepts) polled.push_back({listening_, POLLIN, 0});
    const int ms = timeout == absl::InfiniteDuration()
                       ? -1
                       : static_cast<int>(std::max<int64_t>(
                             absl::ToInt64Milliseconds(
                                 absl::Ceil(timeout, absl::Milliseconds(1))),
                             0));
    if (::poll(polled.data(), polled.size(), ms) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    std::vector<Connection> left;
    for (size_t i = 0; i < connections_.size(); ++i) {
      const Connection& connection = connections_[i];
      const bool done = (polled[i + 1].revents != 0 && Serve(connection)) ||
                        Until(connection.until) <= absl::ZeroDuration();
      if (done) {
        ::close(connection.fd);
      } else {
        left.push_back(connection);
      }
    }
    connections_ = std::move(left);
    if (accepts && polled.back().revents != 0) Accept();
  }
}

void LaneServer::Accept() {
  const int fd =
      ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    full_ = errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
    return;
  }
  if (!IsOwnUser(fd)) {
    ::close(fd);
    return;
  }
  // The oldest is closed, so that a client that waits for an answer is served.
  if (connections_.size() >= options_.max_pending) {
    ::close(connections_.front().fd);
    connections_.erase(connections_.begin());
  }
  connections_.push_back({fd, MonotonicAfter(options_.patience)});
}

bool LaneServer::Serve(const Connection& connection) {
  const absl::Status status = Take(connection.fd);
  if (absl::IsUnavailable(status)) return false;
  const std::string answer =
      status.ok()
          ? kLaneTaken
          : std::string(status.message().substr(0, kMaxLaneAnswerBytes));
  // The result is ignored: a client that does not wait does not need the
  // answer.
  (void)::send(connection.fd, answer.data(), answer.size(),
               MSG_NOSIGNAL | MSG_DONTWAIT);
  return true;
}

absl::Status LaneServer::Take(int socket) {
  RP_ASSIGN_OR_RETURN(const HandedOver untrusted, ReceiveHandedOver(socket));
  RP_ASSIGN_OR_RETURN(
      std::shared_ptr<const SharedMemoryReader> memory,
      SharedMemoryReader::Adopt(untrusted.fd, options_.max_bytes));
  absl::MutexLock lock(&mutex_);
  const auto it = sessions_.find(untrusted.session);
  if (it == sessions_.end())
    return absl::NotFoundError("no session of that name is open");
  // The memory of a session is never replaced, because frames refer to it.
  if (it->second != nullptr)
    return absl::AlreadyExistsError("the session already shares memory");
  // Only this thread increases it.
  if (*kept_ >= options_.max_lanes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options_.max_lanes, " sessions already share memory"));
  }
  ++lanes_;
  ++*kept_;
  const SharedMemoryReader* const reader = memory.get();
  // The descriptor counts until the last stream has released the memory.
  it->second = std::shared_ptr<const SharedMemoryReader>(
      reader, [memory = std::move(memory),
               kept = kept_](const SharedMemoryReader*) mutable {
        memory.reset();
        --*kept;
      });
  return absl::OkStatus();
}

}  // namespace rankprobe
