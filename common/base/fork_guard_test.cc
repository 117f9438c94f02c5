// SPDX-License-Identifier: Apache-2.0
#include "common/base/fork_guard.h"

#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(ForkGuardTest, ChildrenKnow) {
  const ForkGuard guard;
  EXPECT_FALSE(guard.InChild());
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    const ForkGuard own;
    ::_exit(guard.InChild() && !own.InChild() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(guard.InChild());
}

}  // namespace
}  // namespace rankprobe
