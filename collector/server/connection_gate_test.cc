// SPDX-License-Identifier: Apache-2.0
#include "collector/server/connection_gate.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

// For events that are immediate on an idle machine.
constexpr int kPatienceMs = 30000;

class Client {
 public:
  explicit Client(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&address),
                        sizeof(address)),
              0);
    socklen_t size = sizeof(address);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    name_ = absl::StrCat("ipv4:127.0.0.1:", ntohs(address.sin_port));
  }
  ~Client() { ::close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // gRPC's name for it.
  const std::string& name() const { return name_; }
  void Send(const std::string& data) const {
    (void)!::send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
  }
  // Returns whether the peer ends the connection within the time.
  bool Ended(int ms) const {
    pollfd poll_fd{fd_, POLLIN, 0};
    char byte = 0;
    return ::poll(&poll_fd, 1, ms) > 0 && ::recv(fd_, &byte, 1, 0) <= 0;
  }

 private:
  const int fd_;
  std::string name_;
};

class ConnectionGateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::pipe(log_), 0);
    logger_ =
        std::make_unique<Logger>(log_[1], Logger::Severity::kInfo, &clock_);
    options_.listen = "127.0.0.1:0";
    options_.memory_in_use = [this] { return in_use_.load(); };
    options_.memory_bytes = 1000;
  }
  void TearDown() override {
    gate_.reset();
    for (const int fd : taken_) ::close(fd);
    ::close(log_[0]);
    ::close(log_[1]);
  }
  void Start() {
    auto gate = ConnectionGate::Listen(options_, logger_.get());
    ASSERT_TRUE(gate.ok()) << gate.status();
    gate_ = *std::move(gate);
    gate_->Start([this](int fd) {
      absl::MutexLock lock(&mutex_);
      taken_.push_back(fd);
    });
  }
  void WaitForConnections(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [this, count]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return taken_.size() >= count;
    };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there),
                                        absl::Milliseconds(kPatienceMs)));
  }

  SystemClock clock_;
  int log_[2] = {-1, -1};
  std::unique_ptr<Logger> logger_;
  ConnectionGate::Options options_;
  std::atomic<uint64_t> in_use_{0};
  absl::Mutex mutex_;
  std::vector<int> taken_;
  std::unique_ptr<ConnectionGate> gate_;
};

TEST_F(ConnectionGateTest, OnlyTheUnprovenRunOutOfTime) {
  std::unique_ptr<Client> silent, caller;
  // Repeats until the caller was clearly in time; a busy machine needs longer
  // times.
  for (int64_t ms = 500;; ms *= 4) {
    options_.unproven_time = absl::Milliseconds(ms);
    Start();
    const int64_t began = clock_.MonotonicNanos();
    silent = std::make_unique<Client>(gate_->port());
    caller = std::make_unique<Client>(gate_->port());
    WaitForConnections(2);
    gate_->Prove(caller->name());
    if (clock_.MonotonicNanos() - began < ms * 500'000) break;
    ASSERT_LT(ms, kPatienceMs);
    gate_.reset();
    for (const int fd : taken_) ::close(fd);
    taken_.clear();
  }
  gate_->Prove("ipv4:10.0.0.1:1");
  EXPECT_TRUE(silent->Ended(kPatienceMs));
  EXPECT_FALSE(caller->Ended(200));
  EXPECT_EQ(gate_->stats().connections, 1u);
  EXPECT_EQ(gate_->stats().unproven, 0u);
  EXPECT_EQ(gate_->stats().cut, 1u);
}

TEST_F(ConnectionGateTest, WhenMemoryIsShortDataWithoutACallIsCut) {
  options_.unproven_bytes = 1000;
  in_use_ = 1100;
  Start();
  const Client loud(gate_->port());
  const Client caller(gate_->port());
  WaitForConnections(2);
  gate_->Prove(caller.name());
  caller.Send(std::string(4000, 'x'));
  loud.Send(std::string(4000, 'x'));
  EXPECT_TRUE(loud.Ended(kPatienceMs));
  EXPECT_FALSE(caller.Ended(100));
}

// D03: the limit before authorization is smaller than a first message may be.
// The kernel holds the rest back, and no connection is closed for it.
TEST_F(ConnectionGateTest, ALargeFirstMessageComesWhenTheCallIsLetThrough) {
  constexpr size_t kMessageBytes = 1 << 20;
  options_.unproven_bytes = 1000;
  Start();
  const Client caller(gate_->port());
  WaitForConnections(1);
  std::thread sender([&] { caller.Send(std::string(kMessageBytes, 'x')); });
  EXPECT_FALSE(caller.Ended(200));
  EXPECT_EQ(gate_->stats().cut, 0u);
  gate_->Prove(caller.name());
  size_t received = 0;
  std::string piece(64 << 10, '\0');
  while (received < kMessageBytes) {
    pollfd poll_fd{taken_[0], POLLIN, 0};
    ASSERT_GT(::poll(&poll_fd, 1, kPatienceMs), 0) << received;
    const ssize_t bytes = ::recv(taken_[0], piece.data(), piece.size(), 0);
    ASSERT_GT(bytes, 0) << received;
    received += static_cast<size_t>(bytes);
  }
  sender.join();
  EXPECT_EQ(gate_->stats().cut, 0u);
}

TEST_F(ConnectionGateTest, TheOldestUnprovenMakesWay) {
  options_.max_unproven = 2;
  Start();
  const Client first(gate_->port());
  WaitForConnections(1);
  gate_->Prove(first.name());
  const Client second(gate_->port());
  WaitForConnections(2);
  const Client third(gate_->port());
  WaitForConnections(3);
  const Client fourth(gate_->port());
  EXPECT_TRUE(second.Ended(kPatienceMs));
  EXPECT_FALSE(first.Ended(100) || third.Ended(0) || fourth.Ended(0));
}

TEST_F(ConnectionGateTest, WhenMemoryIsShortTheLoudestIsCut) {
  Start();
  const Client quiet(gate_->port());
  const Client loud(gate_->port());
  WaitForConnections(2);
  gate_->Prove(quiet.name());
  gate_->Prove(loud.name());
  // The server side reads, as gRPC would.
  in_use_ = 2000;
  std::array<char, 1 << 16> data;
  bool ended = false;
  for (int i = 0; i < 3000 && !ended; ++i) {
    loud.Send(std::string(64 << 10, 'x'));
    {
      absl::MutexLock lock(&mutex_);
      while (::recv(taken_[0], data.data(), data.size(), MSG_DONTWAIT) > 0 ||
             ::recv(taken_[1], data.data(), data.size(), MSG_DONTWAIT) > 0) {
      }
    }
    ended = loud.Ended(10);
  }
  EXPECT_TRUE(ended);
  EXPECT_FALSE(quiet.Ended(600));
}

TEST_F(ConnectionGateTest, WhenMemoryIsShortTheLoudAreSlowedBeforeAnyIsCut) {
  Start();
  const Client quiet(gate_->port());
  const Client loud(gate_->port());
  WaitForConnections(2);
  gate_->Prove(quiet.name());
  gate_->Prove(loud.name());
  EXPECT_EQ(gate_->stats().slowed, 0u);
  in_use_ = 1001;
  std::array<char, 1 << 16> data;
  const auto read_all = [this, &data] {
    absl::MutexLock lock(&mutex_);
    for (const int fd : taken_) {
      while (::recv(fd, data.data(), data.size(), MSG_DONTWAIT) > 0) {
      }
    }
  };
  for (int i = 0; i < 3000 && gate_->stats().slowed == 0; ++i) {
    loud.Send(std::string(64 << 10, 'x'));
    read_all();
    EXPECT_FALSE(loud.Ended(10));
  }
  EXPECT_EQ(gate_->stats().slowed, 1u);
  EXPECT_EQ(gate_->stats().cut, 0u);
  in_use_ = 10;
  for (int i = 0; i < 3000 && gate_->stats().slowed > 0; ++i)
    EXPECT_FALSE(quiet.Ended(10));
  EXPECT_EQ(gate_->stats().slowed, 0u);
}

// Reads from a Unix socket, connected as `user`, in a child process.
class LocalClient {
 public:
  LocalClient(const std::string& name, uid_t user) : pid_(::fork()) {
    if (pid_ != 0) return;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                               1 + name.size());
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    if ((user != ::getuid() && ::setuid(user) != 0) ||
        ::connect(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0)
      ::_exit(1);
    char byte = 0;
    ::_exit(::read(fd, &byte, 1) == 0 ? 7 : 2);
  }
  // Returns 7 if it was closed without a byte.
  int Wait() const {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return WEXITSTATUS(status);
  }
  void Kill() const {
    ::kill(pid_, SIGKILL);
    Wait();
  }

 private:
  const pid_t pid_;
};

TEST_F(ConnectionGateTest, OfAUnixSocketOwnProcessesAreTakenAndOthersClosed) {
  const std::string name = absl::StrCat("rankprobe-gate-test-", ::getpid());
  options_.listen = absl::StrCat("unix-abstract:", name);
  options_.max_unproven = 1;
  Start();
  EXPECT_EQ(gate_->port(), 0);
  EXPECT_EQ(gate_->address(), options_.listen);
  const LocalClient one(name, ::getuid()), two(name, ::getuid());
  WaitForConnections(2);
  EXPECT_EQ(gate_->stats().connections, 2u);
  EXPECT_EQ(gate_->stats().unproven, 0u);
  // gRPC's name for each of them.
  gate_->Prove("unix:");
  one.Kill();
  for (int i = 0; i < 3000 && gate_->stats().connections > 1; ++i)
    ::poll(nullptr, 0, 10);
  EXPECT_EQ(gate_->stats().connections, 1u);
  two.Kill();
  if (::getuid() != 0) GTEST_SKIP() << "only root can be another user";
  EXPECT_EQ(LocalClient(name, 65534).Wait(), 7);
  EXPECT_EQ(gate_->stats().refused, 1u);
  std::array<char, 1 << 12> text;
  const ssize_t n = ::read(log_[0], text.data(), text.size());
  ASSERT_GT(n, 0);
  const std::string log(text.data(), static_cast<size_t>(n));
  EXPECT_TRUE(absl::StrContains(log, "unix:user 65534")) << log;
}

TEST_F(ConnectionGateTest, WhatCannotBeListenedOnIsNamed) {
  Start();
  ConnectionGate::Options again;
  again.listen = absl::StrCat("127.0.0.1:", gate_->port());
  const auto second = ConnectionGate::Listen(again, logger_.get());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(second.status().message(), again.listen));
  again.listen = "192.0.2.1:7411";
  EXPECT_EQ(ConnectionGate::Listen(again, logger_.get()).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(ConnectionGateTest, LinesThatOthersCauseAreLimited) {
  ManualClock manual;
  const Logger logger(log_[1], Logger::Severity::kInfo, &manual);
  LogLimiter limiter(&logger);
  for (int i = 0; i < 500; ++i)
    limiter.Log(Logger::Severity::kWarning, "refused", {{"i", "1"}});
  limiter.Log(Logger::Severity::kWarning, "other", {});
  manual.Advance(absl::Seconds(1));
  limiter.Log(Logger::Severity::kWarning, "refused", {});
  std::array<char, 1 << 16> text;
  const ssize_t n = ::read(log_[0], text.data(), text.size());
  ASSERT_GT(n, 0);
  const std::string log(text.data(), static_cast<size_t>(n));
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(log, '\n')).size(), 13u);
  EXPECT_TRUE(absl::StrContains(log, "left_out=\"490\"")) << log;
}

}  // namespace
}  // namespace rankprobe
