// SPDX-License-Identifier: Apache-2.0
#include "collector/server/listening_sockets.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/testing/scratch_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

bool IsThere(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0;
}

int Connect(const std::string& path, bool is_abstract = false) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + (is_abstract ? 1 : 0), path.data(),
              path.size());
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0)
    return fd;
  ::close(fd);
  return -1;
}

class ListeningSocketsTest : public ::testing::Test {
 protected:
  const testing::ScratchDirectory directory_;
  const std::string path_ = absl::StrCat(directory_.path(), "/socket");
  const std::string address_ = absl::StrCat("unix:", path_);
};

TEST_F(ListeningSocketsTest, AFileIsItsUsersAndGoesAtTheEnd) {
  {
    const auto sockets = ListeningSockets::Open(address_);
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    EXPECT_TRUE((*sockets)->is_unix());
    EXPECT_EQ((*sockets)->port(), 0);
    EXPECT_EQ((*sockets)->address(), address_);
    struct stat found {};
    ASSERT_EQ(::lstat(path_.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 0777, 0600u);
    const int client = Connect(path_);
    EXPECT_GE(client, 0);
    ::close(client);
    const auto second = ListeningSockets::Open(address_);
    ASSERT_TRUE(absl::IsUnavailable(second.status())) << second.status();
    EXPECT_THAT(std::string(second.status().message()),
                HasSubstr("taken by another process"));
    EXPECT_TRUE(IsThere(path_)) << "it is still the first one's";
  }
  EXPECT_FALSE(IsThere(path_));
}

TEST_F(ListeningSocketsTest, WhatAKilledProcessLeftIsReplaced) {
  const int left = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path_.data(), path_.size());
  ASSERT_EQ(::bind(left, reinterpret_cast<const sockaddr*>(&address),
                   sizeof(address)),
            0);
  ::close(left);
  ASSERT_TRUE(IsThere(path_));
  const auto sockets = ListeningSockets::Open(address_);
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  const int client = Connect(path_);
  EXPECT_GE(client, 0);
  ::close(client);
}

TEST_F(ListeningSocketsTest, AFileThatIsNoSocketStays) {
  std::ofstream(path_) << "a user's";
  const auto sockets = ListeningSockets::Open(address_);
  ASSERT_TRUE(absl::IsUnavailable(sockets.status())) << sockets.status();
  EXPECT_THAT(std::string(sockets.status().message()),
              HasSubstr("a file that is not a socket"));
  EXPECT_TRUE(IsThere(path_));
  const auto nowhere = ListeningSockets::Open(
      absl::StrCat("unix:", directory_.path(), "/none/socket"));
  EXPECT_THAT(std::string(nowhere.status().message()),
              HasSubstr("No such file or directory"));
}

TEST_F(ListeningSocketsTest, AnotherUserIsFoundOut) {
  const std::string name =
      absl::StrCat("rankprobe-test-", ::getpid(), "-", path_.substr(5));
  const auto sockets =
      ListeningSockets::Open(absl::StrCat("unix-abstract:", name));
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  const auto user_of = [&](uid_t user) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (user != ::getuid() && ::setuid(user) != 0) ::_exit(1);
      const int fd = Connect(name, /*is_abstract=*/true);
      char byte = 0;
      (void)!::read(fd, &byte, 1);
      ::_exit(fd < 0 ? 1 : 0);
    }
    pollfd waits{(*sockets)->fds()[0], POLLIN, 0};
    EXPECT_EQ(::poll(&waits, 1, 30000), 1);
    const int fd = ::accept(waits.fd, nullptr, nullptr);
    const std::optional<uid_t> stranger = ForeignUser(fd);
    ::close(fd);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    return stranger;
  };
  EXPECT_EQ(user_of(::getuid()), std::nullopt);
  if (::getuid() != 0) GTEST_SKIP() << "only root can be another user";
  EXPECT_EQ(user_of(65534), std::optional<uid_t>(65534));
}

TEST_F(ListeningSocketsTest, APortThatWasTakenIsInTheAddress) {
  const auto sockets = ListeningSockets::Open("127.0.0.1:0");
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  EXPECT_GT((*sockets)->port(), 0);
  EXPECT_EQ((*sockets)->address(),
            absl::StrCat("127.0.0.1:", (*sockets)->port()));
}

}  // namespace
}  // namespace rankprobe
