// SPDX-License-Identifier: Apache-2.0
#include "common/base/host_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rankprobe {
namespace {

TEST(HostPortTest, TakesNamesAndBothKindsOfAddress) {
  EXPECT_EQ(ParseHostPort("node7:7411", 1)->host, "node7");
  EXPECT_EQ(ParseHostPort("[::1]:80", 1)->host, "[::1]");
  EXPECT_EQ(ParseHostPort("127.0.0.1:0", 0)->port, 0);
}

TEST(HostPortTest, NamesWhatIsNotOne) {
  for (const char* bad :
       {"", "nonsense", "host:", "host:port", "host:65536", "host:-1", "host:0",
        ":7411", "::1:80", "h:1x", "a b:80", " a:80", "a: 80", "a:80 ",
        "a\t:80", "[::1 ]:80"}) {
    const auto parsed = ParseHostPort(bad, 1);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_THAT(std::string(parsed.status().message()),
                ::testing::HasSubstr(bad));
  }
}

TEST(HostPortTest, OnlyWhatMustBeThisMachineIsLoopback) {
  EXPECT_TRUE(IsLoopbackHost("localhost"));
  EXPECT_TRUE(IsLoopbackHost("127.8.0.1"));
  EXPECT_TRUE(IsLoopbackHost("[::1]"));
  for (const char* other :
       {"0.0.0.0", "127.example.com", "127.0.0.1.example.com", "[::]", "127",
        "127.0.0.256", "node7"}) {
    EXPECT_FALSE(IsLoopbackHost(other)) << other;
  }
}

}  // namespace
}  // namespace rankprobe
