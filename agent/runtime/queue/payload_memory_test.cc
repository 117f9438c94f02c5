// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/queue/payload_memory.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Trims long after the last use.
void TrimWhenIdle(PayloadMemory* memory) {
  for (int i = 0; i <= PayloadMemory::kIdleTrims; ++i) memory->Trim();
}

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
  // The memory is full: blocks that are returned now are not kept.
  const auto rest = memory->Allocate(4 * kMiB);
  EXPECT_EQ(memory->kept_bytes(), 0);
}

TEST(PayloadMemoryTest, IdleMemoryIsGivenBack) {
  const auto memory = std::make_shared<PayloadMemory>(8 * kMiB);
  memory->Allocate(kMiB).reset();
  for (int use = 0; use < 2; ++use) {
    for (int i = 0; i < PayloadMemory::kIdleTrims; ++i) {
      memory->Trim();
      EXPECT_EQ(memory->kept_bytes(), kMiB) << "it was used not long ago";
    }
    if (use == 0) memory->Allocate(kMiB).reset();
  }
  memory->Trim();
  EXPECT_EQ(memory->kept_bytes(), 0);
}

TEST(PayloadMemoryTest, BlocksOutliveTheOwner) {
  auto memory = std::make_shared<PayloadMemory>(8 * kMiB);
  std::shared_ptr<char> block = memory->Allocate(kMiB);
  memory.reset();
  block.get()[kMiB - 1] = 1;
}

TEST(PayloadMemoryTest, LargeBlocksLieInSharedMemory) {
  const auto memory =
      std::make_shared<PayloadMemory>(8 * kMiB, /*shared=*/true);
  const std::shared_ptr<char> small = memory->Allocate(1000);
  EXPECT_EQ(memory->shared(), nullptr) << "nothing was large yet";
  EXPECT_FALSE(memory->PlaceOf(small.get()).has_value());
  const std::shared_ptr<char> block = memory->Allocate(kMiB);
  ASSERT_NE(memory->shared(), nullptr) << memory->shared_status();
  const std::optional<uint64_t> place = memory->PlaceOf(block.get() + 77);
  ASSERT_TRUE(place.has_value());
  block.get()[77] = 'x';
  EXPECT_EQ(memory->shared()->data()[*place], 'x');
  EXPECT_FALSE(memory->PlaceOf(small.get()).has_value());
  EXPECT_FALSE(
      memory->PlaceOf(memory->shared()->data() + memory->shared()->size())
          .has_value());
}

// For a memory of 8 MiB without any block in use.
void ExpectAllGivenBack(PayloadMemory* memory) {
  TrimWhenIdle(memory);
  struct stat info;
  ASSERT_EQ(::fstat(memory->shared()->fd(), &info), 0);
  EXPECT_EQ(info.st_blocks, 0) << "all of it is the system's again";
  // The free ranges were merged.
  EXPECT_TRUE(memory->PlaceOf(memory->Allocate(8 * kMiB).get()).has_value());
}

// Blocks of all sizes are allocated and freed: no two in use share a byte, and
// what does not fit comes from the heap.
TEST(PayloadMemoryTest, BlocksInUseNeverOverlap) {
  const auto memory =
      std::make_shared<PayloadMemory>(8 * kMiB, /*shared=*/true);
  std::mt19937_64 random(17);
  std::vector<std::pair<std::shared_ptr<char>, uint64_t>> in_use;
  uint64_t bytes = 0;
  int shared = 0;
  for (int i = 0; i < 3000; ++i) {
    const uint64_t size = 1 + random() % kMiB;
    if (i % 500 == 499) TrimWhenIdle(memory.get());
    while (bytes + PayloadMemory::BlockBytes(size) > 8 * kMiB) {
      const size_t at = random() % in_use.size();
      auto [block, length] = in_use[at];
      const auto tag = static_cast<char>(length * 31);
      ASSERT_EQ(block.get()[0], tag);
      ASSERT_EQ(block.get()[length - 1], tag);
      bytes -= PayloadMemory::BlockBytes(length);
      in_use.erase(in_use.begin() + static_cast<int64_t>(at));
    }
    std::shared_ptr<char> block = memory->Allocate(size);
    std::memset(block.get(), static_cast<char>(size * 31), size);
    shared += memory->PlaceOf(block.get()).has_value() ? 1 : 0;
    bytes += PayloadMemory::BlockBytes(size);
    in_use.emplace_back(std::move(block), size);
  }
  EXPECT_GT(shared, 2500);
  in_use.clear();
  ExpectAllGivenBack(memory.get());
}

// The same with blocks taken and given back by several threads at once.
TEST(PayloadMemoryTest, BlocksOfSeveralThreadsNeverOverlap) {
  const auto memory =
      std::make_shared<PayloadMemory>(8 * kMiB, /*shared=*/true);
  std::atomic<int> shared{0}, torn{0};
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      for (int i = 0; i < 120; ++i) {
        const uint64_t size = (64 << 10) + random() % (2 * kMiB - (64 << 10));
        const std::shared_ptr<char> block = memory->Allocate(size);
        shared += memory->PlaceOf(block.get()).has_value() ? 1 : 0;
        const auto tag = static_cast<char>(seed);
        for (uint64_t at = 0; at < size; at += 4096) block.get()[at] = tag;
        if (random() % 8 == 0) TrimWhenIdle(memory.get());
        for (uint64_t at = 0; at < size; at += 4096)
          torn += block.get()[at] == tag ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
  EXPECT_GT(shared, 360);
  ExpectAllGivenBack(memory.get());
}

// Calls `asked` before each call of the kernel.
class WatchedMemory : public SharedMemory {
 public:
  WatchedMemory(SharedMemory&& memory, std::function<void()> asked)
      : SharedMemory(std::move(memory)), asked_(std::move(asked)) {}
  bool Take(uint64_t offset, uint64_t bytes) override {
    asked_();
    return SharedMemory::Take(offset, bytes);
  }
  void GiveBack(uint64_t offset, uint64_t bytes) override {
    asked_();
    SharedMemory::GiveBack(offset, bytes);
  }

 private:
  const std::function<void()> asked_;
};

// A training thread that needs a small block does not wait for the kernel.
TEST(PayloadMemoryTest, NobodyWaitsForTheKernel) {
  std::shared_ptr<PayloadMemory> memory;
  std::vector<std::future<uint64_t>> others;
  int asked = 0;
  const auto ask = [&] {
    ++asked;
    others.push_back(
        std::async(std::launch::async, [&] { return memory->kept_bytes(); }));
    EXPECT_EQ(others.back().wait_for(std::chrono::seconds(5)),
              std::future_status::ready)
        << "the lock is held, time " << asked;
  };
  memory = std::make_shared<PayloadMemory>(
      8 * kMiB,
      [&](uint64_t bytes) -> absl::StatusOr<std::unique_ptr<SharedMemory>> {
        ask();
        auto made = SharedMemory::Create(bytes);
        if (!made.ok()) return made;
        return std::make_unique<WatchedMemory>(std::move(**made), ask);
      });
  memory->Allocate(3 * kMiB).reset();
  EXPECT_EQ(asked, 2) << "made, and taken from";
  // Kept blocks are freed for a larger one.
  const auto large = memory->Allocate(7 * kMiB);
  EXPECT_EQ(asked, 4);
  { const auto too_much = memory->Allocate(2 * kMiB); }
  EXPECT_EQ(asked, 6);
  memory->Allocate(kMiB).reset();
  TrimWhenIdle(memory.get());
  EXPECT_EQ(asked, 8);
  EXPECT_TRUE(memory->PlaceOf(large.get()).has_value());
}

// If the system has no memory left, the heap is used, and the range stays free.
TEST(PayloadMemoryTest, WhereNothingCanBeTakenTheHeapServes) {
  class Exhausted : public SharedMemory {
   public:
    Exhausted(SharedMemory&& memory, const bool* exhausted)
        : SharedMemory(std::move(memory)), exhausted_(exhausted) {}
    bool Take(uint64_t offset, uint64_t bytes) override {
      return !*exhausted_ && SharedMemory::Take(offset, bytes);
    }

   private:
    const bool* const exhausted_;
  };
  bool exhausted = true;
  const auto memory = std::make_shared<PayloadMemory>(
      8 * kMiB,
      [&](uint64_t bytes) -> absl::StatusOr<std::unique_ptr<SharedMemory>> {
        auto made = SharedMemory::Create(bytes);
        if (!made.ok()) return made;
        return std::make_unique<Exhausted>(std::move(**made), &exhausted);
      });
  const std::shared_ptr<char> block = memory->Allocate(kMiB);
  block.get()[kMiB - 1] = 1;
  EXPECT_FALSE(memory->PlaceOf(block.get()).has_value());
  exhausted = false;
  EXPECT_TRUE(memory->PlaceOf(memory->Allocate(7 * kMiB).get()).has_value());
}

// Frames that a collector has received but not read when their session ends.
TEST(PayloadMemoryTest, WhatWasHandedOverIsReadToTheEnd) {
  auto memory = std::make_shared<PayloadMemory>(8 * kMiB, /*shared=*/true);
  std::shared_ptr<char> block = memory->Allocate(kMiB);
  ASSERT_NE(memory->shared(), nullptr) << memory->shared_status();
  const auto reader = SharedMemoryReader::Adopt(::dup(memory->shared()->fd()),
                                                memory->shared()->size());
  ASSERT_TRUE(reader.ok()) << reader.status();
  const std::optional<uint64_t> place = memory->PlaceOf(block.get());
  ASSERT_TRUE(place.has_value());
  std::memset(block.get(), 'x', kMiB);
  block.reset();
  memory.reset();
  std::string read(kMiB, '\0');
  ASSERT_TRUE((*reader)->Read(*place, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, std::string(kMiB, 'x'));
}

// A child must not return memory that its parent uses.
TEST(PayloadMemoryTest, AForkedChildLeavesTheParentsMemoryAlone) {
  auto memory = std::make_shared<PayloadMemory>(8 * kMiB, /*shared=*/true);
  memory->Allocate(kMiB).reset();  // kept
  const pid_t child = ::fork();
  if (child == 0) {
    memory->Trim();
    memory->Trim();
    memory.reset();
    ::_exit(0);
  }
  const std::shared_ptr<char> block = memory->Allocate(kMiB);
  std::memset(block.get(), 'x', kMiB);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(std::string(block.get(), kMiB), std::string(kMiB, 'x'));
}

}  // namespace
}  // namespace rankprobe
