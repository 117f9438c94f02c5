// SPDX-License-Identifier: Apache-2.0
#include "collector/rpc/lane_server.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "common/rpc/lane_socket.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr absl::Duration kSoon = absl::Seconds(20);

class LaneServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto memory = SharedMemory::Create(1 << 20);
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
  }
  void Start(const LaneServer::Options& options) {
    auto server = LaneServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  absl::Status Give(const std::string& session, int fd) {
    return HandOver(server_->name(), session, fd, kSoon);
  }
  // Opens a connection that sends nothing.
  int Connect() {
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, server_->name().data(),
                server_->name().size());
    EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address),
                        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                               1 + server_->name().size())),
              0);
    return fd;
  }

  std::unique_ptr<SharedMemory> memory_;
  std::unique_ptr<LaneServer> server_;
};

TEST_F(LaneServerTest, ASessionsMemoryIsRead) {
  Start({});
  server_->Expect("a");
  EXPECT_EQ(server_->Find("a"), nullptr);
  std::memcpy(memory_->data(), "tensor", 6);
  EXPECT_TRUE(Give("a", memory_->fd()).ok());
  EXPECT_EQ(server_->lanes(), 1u);
  const auto reader = server_->Find("a");
  ASSERT_NE(reader, nullptr);
  server_->Forget("a");
  EXPECT_EQ(server_->lanes(), 0u);
  EXPECT_EQ(server_->Find("a"), nullptr);
  // Both the session and the rank have ended.
  memory_.reset();
  std::string out(6, '\0');
  EXPECT_TRUE(reader->Read(0, absl::MakeSpan(out)).ok());
  EXPECT_EQ(out, "tensor");
}

TEST_F(LaneServerTest, WhatIsNoSessionsOrNoMemoryIsRefused) {
  LaneServer::Options options;
  options.max_lanes = 2;
  options.max_bytes = 1 << 20;
  Start(options);
  for (const char* const session : {"a", "b", "c"}) server_->Expect(session);
  EXPECT_FALSE(Give("nobody", memory_->fd()).ok());
  const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_FALSE(Give("a", file).ok());
  ::close(file);
  const auto larger = SharedMemory::Create(2 << 20);
  ASSERT_TRUE(larger.ok()) << larger.status();
  EXPECT_FALSE(Give("a", (*larger)->fd()).ok());
  EXPECT_EQ(server_->lanes(), 0u);
  // After a refusal the session may still share memory.
  EXPECT_TRUE(Give("a", memory_->fd()).ok());
  EXPECT_EQ(Give("a", memory_->fd()).message(),
            "the collector refuses: the session already shares memory");
  EXPECT_TRUE(Give("b", memory_->fd()).ok());
  EXPECT_FALSE(Give("c", memory_->fd()).ok());
  server_->Forget("a");
  EXPECT_TRUE(Give("c", memory_->fd()).ok());
}

TEST_F(LaneServerTest, MemoryThatIsStillReadCounts) {
  LaneServer::Options options;
  options.max_lanes = 1;
  Start(options);
  server_->Expect("a");
  server_->Expect("b");
  EXPECT_TRUE(Give("a", memory_->fd()).ok());
  auto reader = server_->Find("a");
  ASSERT_NE(reader, nullptr);
  server_->Forget("a");
  EXPECT_FALSE(Give("b", memory_->fd()).ok());
  reader.reset();
  EXPECT_TRUE(Give("b", memory_->fd()).ok());
}

TEST_F(LaneServerTest, ThoseWhoSayNothingKeepNobodyOut) {
  LaneServer::Options options;
  options.max_pending = 8;
  options.patience = absl::Hours(1);
  Start(options);
  server_->Expect("a");
  std::vector<int> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(Connect());
  EXPECT_TRUE(Give("a", memory_->fd()).ok());
  // The first were closed in favour of later ones.
  char byte = 0;
  EXPECT_EQ(::recv(silent.front(), &byte, 1, 0), 0);
  for (const int fd : silent) ::close(fd);
}

TEST_F(LaneServerTest, AConnectionHasLittleTime) {
  LaneServer::Options options;
  options.patience = absl::Milliseconds(20);
  Start(options);
  const int silent = Connect();
  char byte = 0;
  EXPECT_EQ(::recv(silent, &byte, 1, 0), 0);
  ::close(silent);
}

}  // namespace
}  // namespace rankprobe
