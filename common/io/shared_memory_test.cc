// SPDX-License-Identifier: Apache-2.0
#include "common/io/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr uint64_t kMax = uint64_t{1} << 40;

uint64_t BlocksOf(int fd) {
  struct stat info;
  EXPECT_EQ(::fstat(fd, &info), 0);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

TEST(SharedMemoryTest, WhatOneWritesTheOtherReads) {
  const auto memory = SharedMemory::Create(kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::memcpy((*memory)->data() + 4096, "tensor", 6);
  const auto reader = SharedMemoryReader::Adopt(::dup((*memory)->fd()), kMax);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->size(), kBytes);
  std::string out(6, '\0');
  EXPECT_TRUE((*reader)->Read(4096, absl::MakeSpan(out)).ok());
  EXPECT_EQ(out, "tensor");
}

TEST(SharedMemoryTest, MemoryThatIsGivenBackIsTheSystems) {
  const auto memory = SharedMemory::Create(kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::memset((*memory)->data(), 1, kBytes);
  EXPECT_EQ(BlocksOf((*memory)->fd()), kBytes);
  (*memory)->GiveBack(0, kBytes / 2);
  EXPECT_EQ(BlocksOf((*memory)->fd()), kBytes / 2);
  EXPECT_EQ((*memory)->data()[0], 0);
  EXPECT_EQ((*memory)->data()[kBytes - 1], 1);
}

// The reader must not allocate memory that was never written.
TEST(SharedMemoryTest, ReadingWhatWasNeverWrittenTakesNoMemory) {
  const auto memory = SharedMemory::Create(64 * kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto reader = SharedMemoryReader::Adopt(::dup((*memory)->fd()), kMax);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::string out(kBytes, 'x');
  for (uint64_t at = 0; at < 64 * kBytes; at += kBytes)
    EXPECT_TRUE((*reader)->Read(at, absl::MakeSpan(out)).ok());
  EXPECT_EQ(out, std::string(kBytes, '\0'));
  EXPECT_EQ(BlocksOf((*memory)->fd()), 0u);
}

TEST(SharedMemoryTest, NothingBeyondTheEndIsRead) {
  const auto memory = SharedMemory::Create(kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto reader = SharedMemoryReader::Adopt(::dup((*memory)->fd()), kMax);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::string out(2, '\0');
  EXPECT_TRUE((*reader)->Read(kBytes - 2, absl::MakeSpan(out)).ok());
  for (const uint64_t offset : {kBytes - 1, kBytes, kBytes + 1, UINT64_MAX,
                                UINT64_MAX - 1, uint64_t{1} << 63}) {
    EXPECT_EQ((*reader)->Read(offset, absl::MakeSpan(out)).code(),
              absl::StatusCode::kInvalidArgument)
        << offset;
  }
}

TEST(SharedMemoryTest, NeitherSideCanChangeItsSize) {
  const auto memory = SharedMemory::Create(kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_NE(::ftruncate((*memory)->fd(), 0), 0);
  EXPECT_NE(::ftruncate((*memory)->fd(), 2 * kBytes), 0);
}

// A process with a limit of file sizes is not killed for it.
TEST(SharedMemoryTest, ALimitOfFilesIsNotExceeded) {
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  if (before.rlim_cur < 2 * kBytes) GTEST_SKIP();
  rlimit low = before;
  low.rlim_cur = 2 * kBytes;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const auto fits = SharedMemory::Create(2 * kBytes).status();
  const auto larger = SharedMemory::Create(3 * kBytes).status();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(fits.ok()) << fits;
  EXPECT_EQ(larger.code(), absl::StatusCode::kUnavailable) << larger;
}

TEST(SharedMemoryTest, OtherDescriptorsAreRefusedAndClosed) {
  const auto refused = [](int fd, uint64_t max_bytes) {
    ASSERT_GE(fd, 0);
    EXPECT_EQ(SharedMemoryReader::Adopt(fd, max_bytes).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(::fcntl(fd, F_GETFD), -1) << "descriptor " << fd << " is open";
  };
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  refused(pipe[0], kMax);
  ::close(pipe[1]);
  refused(::open("/dev/zero", O_RDONLY), kMax);
  refused(::open("/proc/self/maps", O_RDONLY), kMax);
  refused(::open("/tmp", O_RDONLY | O_DIRECTORY), kMax);
  const int unsealed = ::memfd_create("x", MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(unsealed, kBytes), 0);
  refused(unsealed, kMax);
  const int half = ::memfd_create("x", MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(half, kBytes), 0);
  ASSERT_EQ(::fcntl(half, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL), 0);
  refused(half, kMax);
  const int empty = ::memfd_create("x", MFD_ALLOW_SEALING);
  ASSERT_EQ(
      ::fcntl(empty, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
      0);
  refused(empty, kMax);
  const auto memory = SharedMemory::Create(kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  refused(::dup((*memory)->fd()), kBytes - 1);
}

}  // namespace
}  // namespace rankprobe
