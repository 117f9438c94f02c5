// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/queue/payload_memory.h"

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(PayloadMemoryTest, WastesAtMostASixteenth) {
  for (uint64_t bytes = 1; bytes < 100 * kMiB; bytes = bytes * 9 / 8 + 1) {
    const uint64_t block = PayloadMemory::BlockBytes(bytes);
    EXPECT_GE(block, bytes);
    EXPECT_LE(block, bytes + bytes / 16);
  }
}

TEST(PayloadMemoryTest, BlocksGoRound) {
  const auto memory = std::make_shared<PayloadMemory>(8 * kMiB);
  std::shared_ptr<char> block = memory->Allocate(kMiB);
  const char* const first = block.get();
  block.reset();
  EXPECT_EQ(memory->kept_bytes(), kMiB);
  block = memory->Allocate(kMiB - 10);
  EXPECT_EQ(block.get(), first);
  EXPECT_EQ(memory->kept_bytes(), 0);
}

TEST(PayloadMemoryTest, KeptBlocksMakeRoom) {
  const auto memory = std::make_shared<PayloadMemory>(8 * kMiB);
  { const auto a = memory->Allocate(3 * kMiB), b = memory->Allocate(3 * kMiB); }
  EXPECT_EQ(memory->kept_bytes(), 6 * kMiB);
  const auto big = memory->Allocate(4 * kMiB);
  EXPECT_EQ(memory->kept_bytes(), 3 * kMiB);
  // Full: what comes back now is not kept.
  const auto rest = memory->Allocate(4 * kMiB);
  EXPECT_EQ(memory->kept_bytes(), 0);
}

TEST(PayloadMemoryTest, IdleMemoryIsGivenBack) {
  const auto memory = std::make_shared<PayloadMemory>(8 * kMiB);
  memory->Allocate(kMiB).reset();
  memory->Trim();
  EXPECT_EQ(memory->kept_bytes(), kMiB) << "it was used since";
  memory->Trim();
  EXPECT_EQ(memory->kept_bytes(), 0);
}

TEST(PayloadMemoryTest, BlocksOutliveTheOwner) {
  auto memory = std::make_shared<PayloadMemory>(8 * kMiB);
  std::shared_ptr<char> block = memory->Allocate(kMiB);
  memory.reset();
  block.get()[kMiB - 1] = 1;
}

}  // namespace
}  // namespace rankprobe
