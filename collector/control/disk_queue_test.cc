// SPDX-License-Identifier: Apache-2.0
#include "collector/control/disk_queue.h"

#include <string>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(DiskQueueTest, RefusesBeyondItsBoundsAndTakesMoreWhenSomeHasRun) {
  DiskQueue queue(/*own_thread=*/false, {/*tasks=*/3, /*bytes=*/100});
  std::string ran;
  const auto task = [&ran](char name) { return [&ran, name] { ran += name; }; };
  EXPECT_TRUE(queue.TryAdd(task('a'), 60));
  EXPECT_FALSE(queue.TryAdd(task('x'), 41)) << "bytes";
  EXPECT_TRUE(queue.TryAdd(task('b'), 40));
  // A task that completes an operation is never refused.
  queue.Add(task('c'));
  queue.Add(task('d'));
  EXPECT_FALSE(queue.TryAdd(task('y'), 0)) << "tasks";
  queue.RunQueued();
  EXPECT_EQ(ran, "abcd");
  EXPECT_FALSE(queue.TryAdd(task('z'), 101));
  EXPECT_TRUE(queue.TryAdd(task('e'), 100));
  queue.Wait();
  EXPECT_EQ(ran, "abcde");
}

}  // namespace
}  // namespace rankprobe
