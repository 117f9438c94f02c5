// SPDX-License-Identifier: Apache-2.0
#include "common/base/same_bytes.h"

#include <string>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(SameBytesTest, OnlyTheSameBytesAreTheSame) {
  EXPECT_TRUE(SameBytes("", ""));
  EXPECT_TRUE(SameBytes("secret", "secret"));
  EXPECT_FALSE(SameBytes("secret", "secreT"));
  EXPECT_FALSE(SameBytes("secret", "secre"));
  EXPECT_FALSE(SameBytes("secret", ""));
  const std::string digest(32, '\xff');
  for (size_t i = 0; i < digest.size(); ++i) {
    std::string other = digest;
    other[i] = '\x7f';
    EXPECT_FALSE(SameBytes(digest, other)) << i;
  }
}

}  // namespace
}  // namespace rankprobe
