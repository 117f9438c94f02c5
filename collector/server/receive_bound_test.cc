// SPDX-License-Identifier: Apache-2.0
#include "collector/server/receive_bound.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr int kPumpMs = 30000;
constexpr uint32_t kBound = 100000;
constexpr size_t kSegment = 64 << 10;

// Both ends of a connection over loopback; the parameter is the address family.
class ReceiveBoundTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    listener_ = ::socket(GetParam(), SOCK_STREAM, 0);
    sockaddr_storage address{};
    address.ss_family = static_cast<sa_family_t>(GetParam());
    if (GetParam() == AF_INET6) {
      reinterpret_cast<sockaddr_in6*>(&address)->sin6_addr = in6addr_loopback;
    } else {
      reinterpret_cast<sockaddr_in*>(&address)->sin_addr.s_addr =
          htonl(INADDR_LOOPBACK);
    }
    socklen_t size =
        GetParam() == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (listener_ < 0 ||
        ::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0)
      GTEST_SKIP() << "no loopback of this family";
    PrepareReceiveBounds(listener_);
    ASSERT_EQ(::listen(listener_, 1), 0);
    ASSERT_EQ(
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size),
        0);
    peer_ = ::socket(GetParam(), SOCK_STREAM, 0);
    ASSERT_EQ(::connect(peer_, reinterpret_cast<sockaddr*>(&address), size), 0);
    accepted_ = ::accept(listener_, nullptr, nullptr);
    ASSERT_GE(accepted_, 0);
    ASSERT_EQ(::fcntl(peer_, F_SETFL, O_NONBLOCK), 0);
    ASSERT_EQ(::fcntl(accepted_, F_SETFL, O_NONBLOCK), 0);
  }
  void TearDown() override {
    for (const int fd : {listener_, peer_, accepted_}) {
      if (fd >= 0) ::close(fd);
    }
  }

  // Sends and reads until `wanted` bytes were received or none arrives for
  // `quiet_ms`; returns the number of received bytes.
  size_t Pump(size_t wanted, int quiet_ms) {
    const std::string out(16 << 10, 'x');
    std::vector<char> in(1 << 20);
    size_t received = 0;
    while (received < wanted) {
      while (::send(peer_, out.data(), out.size(), MSG_NOSIGNAL) > 0) {
      }
      pollfd poll_fd{accepted_, POLLIN, 0};
      if (::poll(&poll_fd, 1, quiet_ms) <= 0) break;
      const ssize_t got = ::recv(accepted_, in.data(), in.size(), 0);
      if (got <= 0) break;
      received += static_cast<size_t>(got);
    }
    return received;
  }

  int listener_ = -1;
  int peer_ = -1;
  int accepted_ = -1;
};

TEST_P(ReceiveBoundTest, NothingBeyondItArrivesUntilItIsTakenAway) {
  ReceiveBound bound(accepted_);
  ASSERT_TRUE(bound.Set(accepted_, kBound));
  EXPECT_TRUE(bound.is_set());
  const size_t received = Pump(/*wanted=*/1 << 30, /*quiet_ms=*/1000);
  EXPECT_GE(received, kBound);
  EXPECT_LE(received, kBound + kSegment);
  bound.Remove(accepted_);
  EXPECT_GE(Pump(4 << 20, kPumpMs), size_t{4} << 20);
}

TEST_P(ReceiveBoundTest, ItMovesForward) {
  ReceiveBound bound(accepted_);
  size_t received = 0;
  for (size_t most = kBound; most <= size_t{4} * kBound; most += kBound) {
    ASSERT_TRUE(bound.Set(accepted_, most));
    while (received < most) {
      const size_t more = Pump(most - received, kPumpMs);
      ASSERT_GT(more, 0u);
      received += more;
    }
    received += Pump(1 << 30, /*quiet_ms=*/500);
    EXPECT_LE(received, most + kSegment);
  }
}

TEST_P(ReceiveBoundTest, WithoutOneAllArrives) {
  EXPECT_GE(Pump(4 << 20, kPumpMs), size_t{4} << 20);
}

TEST_P(ReceiveBoundTest, AConnectionWithoutItsSynHasNone) {
  const ReceiveBound first(accepted_);
  // The kernel keeps the SYN only until it was requested once.
  ReceiveBound second(accepted_);
  EXPECT_FALSE(second.Set(accepted_, kBound));
  EXPECT_FALSE(second.is_set());
  EXPECT_GE(Pump(4 << 20, kPumpMs), size_t{4} << 20);
}

INSTANTIATE_TEST_SUITE_P(Families, ReceiveBoundTest,
                         ::testing::Values(AF_INET, AF_INET6));

}  // namespace
}  // namespace rankprobe
