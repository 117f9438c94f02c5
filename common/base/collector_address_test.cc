// SPDX-License-Identifier: Apache-2.0
#include "common/base/collector_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rankprobe {
namespace {

TEST(CollectorAddressTest, TakesBothKindsOfSocket) {
  const auto file = ParseUnixAddress("unix:/tmp/my runs/socket");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->path, "/tmp/my runs/socket");
  EXPECT_FALSE(file->is_abstract);
  const auto name = ParseUnixAddress("unix-abstract:rankprobe-1");
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_EQ(name->path, "rankprobe-1");
  EXPECT_TRUE(name->is_abstract);
  // gRPC takes it for a path, too.
  EXPECT_TRUE(IsUnixAddress("unix:7411"));
  EXPECT_FALSE(IsUnixAddress("unixes:7411"));
  EXPECT_FALSE(IsUnixAddress("node7:7411"));
}

TEST(CollectorAddressTest, NamesWhatIsNone) {
  EXPECT_TRUE(ParseUnixAddress("unix:" + std::string(107, 'x')).ok());
  for (const std::string& bad :
       {std::string("unix:"), std::string("unix-abstract:"),
        "unix:/" + std::string(107, 'x'), std::string("unix:/a\nb"),
        std::string("unix:/a,b"), std::string("node7:1")}) {
    const auto parsed = ParseUnixAddress(bad);
    ASSERT_TRUE(absl::IsInvalidArgument(parsed.status())) << bad;
    EXPECT_THAT(std::string(parsed.status().message()),
                ::testing::HasSubstr(bad));
  }
  EXPECT_TRUE(CheckCollectorAddress("node7:7411").ok());
  EXPECT_TRUE(CheckCollectorAddress("unix:socket").ok());
  EXPECT_FALSE(CheckCollectorAddress("node7:0").ok());
  EXPECT_FALSE(CheckCollectorAddress("unix:").ok());
}

TEST(CollectorAddressTest, APathIsAUriToGrpc) {
  EXPECT_EQ(GrpcTarget("node7:7411"), "node7:7411");
  EXPECT_EQ(GrpcTarget("unix:/tmp/run-1/socket"), "unix:/tmp/run-1/socket");
  EXPECT_EQ(GrpcTarget("unix:/a b%?#\xC3\xA9/s"),
            "unix:/a%20b%25%3F%23%C3%A9/s");
  EXPECT_EQ(GrpcTarget("unix-abstract:a:b"), "unix-abstract:a%3Ab");
}

TEST(CollectorAddressTest, WhyNobodyIsReachedHasNoAddressesOfGrpc) {
  EXPECT_EQ(WhyNotReached("failed to connect to all addresses; last error: "
                          "UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to "
                          "remote host: Connection refused"),
            "nothing listens there");
  EXPECT_EQ(WhyNotReached("unix:/a: Failed to connect to remote host: No such "
                          "file or directory"),
            "there is no such socket");
  EXPECT_EQ(WhyNotReached("DNS resolution failed for node0"),
            "the name of the host is not known");
  EXPECT_EQ(WhyNotReached("127.0.0.1:1: connection attempt timed out before "
                          "receiving SETTINGS frame"),
            "what listens there does not answer");
  EXPECT_EQ(WhyNotReached("the token is not known"), "the token is not known");
}

}  // namespace
}  // namespace rankprobe
