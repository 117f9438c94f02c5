// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/lane_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr absl::Duration kSoon = absl::Seconds(20);

// Any file serves here; the process' own input may be closed.
int AFile() {
  static const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  return file;
}

int AcceptOne(int listening) {
  pollfd ready{listening, POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 20000), 1);
  return ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
}

// How the collector's side judges one message, and its answer.
absl::StatusOr<HandedOver> Answer(int listening, const std::string& answer) {
  const int socket = AcceptOne(listening);
  EXPECT_TRUE(IsOwnUser(socket));
  pollfd ready{socket, POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 20000), 1);
  absl::StatusOr<HandedOver> got = ReceiveHandedOver(socket);
  EXPECT_EQ(::send(socket, answer.data(), answer.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(answer.size()));
  ::close(socket);
  return got;
}

TEST(LaneSocketTest, ADescriptorIsHandedOver) {
  const std::string name = NewLaneName();
  const absl::StatusOr<int> listening = ListenLane(name);
  ASSERT_TRUE(listening.ok()) << listening.status();
  const int file = AFile();
  absl::StatusOr<HandedOver> got = absl::UnknownError("");
  std::thread collector([&] { got = Answer(*listening, kLaneTaken); });
  const absl::Status status = HandOver(name, "session", file, kSoon);
  collector.join();
  EXPECT_TRUE(status.ok()) << status;
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->session, "session");
  struct stat here, there;
  ASSERT_EQ(::fstat(file, &here), 0);
  ASSERT_EQ(::fstat(got->fd, &there), 0);
  EXPECT_EQ(here.st_rdev, there.st_rdev);
  EXPECT_EQ(::fcntl(got->fd, F_GETFD), FD_CLOEXEC);
  ::close(got->fd);
  ::close(*listening);
}

TEST(LaneSocketTest, ARefusalIsToldAndNobodyIsNotWaitedFor) {
  const std::string name = NewLaneName();
  EXPECT_EQ(HandOver(name, "session", AFile(), kSoon).code(),
            absl::StatusCode::kUnavailable);
  const absl::StatusOr<int> listening = ListenLane(name);
  ASSERT_TRUE(listening.ok()) << listening.status();
  std::thread collector([&] {
    const auto got = Answer(*listening, "no room");
    if (got.ok()) ::close(got->fd);
  });
  const absl::Status refused = HandOver(name, "session", AFile(), kSoon);
  collector.join();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(refused.message(), "the collector refuses: no room");
  // A socket that listens and does not answer.
  EXPECT_EQ(HandOver(name, "session", AFile(), absl::Milliseconds(20)).code(),
            absl::StatusCode::kUnavailable);
  ::close(*listening);
}

// A collector must not make its agents connect to other sockets of their host.
TEST(LaneSocketTest, OnlyNamesOfLanesAreSpokenTo) {
  EXPECT_TRUE(IsLaneName(NewLaneName()));
  EXPECT_NE(NewLaneName(), NewLaneName());
  const std::string name = NewLaneName();
  for (const std::string& other :
       {std::string(), std::string("/tmp/.X11-unix/X0"), name + "0",
        name.substr(1), name.substr(0, name.size() - 1), "x" + name.substr(1),
        name.substr(0, name.size() - 1) + "/", std::string(200, 'a')}) {
    EXPECT_FALSE(IsLaneName(other)) << other;
    EXPECT_FALSE(ListenLane(other).ok());
    EXPECT_EQ(HandOver(other, "session", AFile(), kSoon).code(),
              absl::StatusCode::kUnavailable);
  }
  EXPECT_FALSE(HandOver(name, "", AFile(), kSoon).ok());
  EXPECT_FALSE(HandOver(name, std::string(65, 's'), AFile(), kSoon).ok());
}

class OddMessageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_GE(AFile(), 0);
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_),
              0);
  }
  void TearDown() override {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  void Send(const std::string& text, int descriptors) {
    std::vector<char> control(
        CMSG_SPACE(sizeof(int) * static_cast<size_t>(descriptors)));
    iovec io{const_cast<char*>(text.data()), text.size()};
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    if (descriptors > 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* const rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len =
          CMSG_LEN(sizeof(int) * static_cast<size_t>(descriptors));
      const std::vector<int> fds(static_cast<size_t>(descriptors), AFile());
      std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
    }
    ASSERT_GE(::sendmsg(ends_[0], &message, MSG_NOSIGNAL), 0);
  }
  int NextDescriptor() {
    const int fd = ::dup(AFile());
    ::close(fd);
    return fd;
  }
  int ends_[2] = {-1, -1};
};

TEST_F(OddMessageTest, EachIsRefusedAndLeavesNothingOpen) {
  EXPECT_EQ(ReceiveHandedOver(ends_[1]).status().code(),
            absl::StatusCode::kUnavailable);
  const int before = NextDescriptor();
  const auto refused = [&](const std::string& text, int descriptors) {
    Send(text, descriptors);
    EXPECT_EQ(ReceiveHandedOver(ends_[1]).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text << " " << descriptors;
    EXPECT_EQ(NextDescriptor(), before) << text << " " << descriptors;
  };
  refused("session", 0);
  refused("session", 2);
  refused("session", 8);
  refused("session", 9);
  refused("session", 250);
  refused(std::string(65, 's'), 1);
  refused(std::string(100000, 's'), 1);
  ::shutdown(ends_[0], SHUT_RDWR);
  EXPECT_EQ(ReceiveHandedOver(ends_[1]).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace rankprobe
