// SPDX-License-Identifier: Apache-2.0
#include "collector/server/own_addresses.h"

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(OwnAddressesTest, HoldsTheNamesOfThisMachineThatItListensTo) {
  const std::set<std::string> loopback = OwnAddresses("127.0.0.1:0", 7410);
  EXPECT_EQ(loopback, (std::set<std::string>{"127.0.0.1:7410", "[::1]:7410",
                                             "localhost:7410"}));
  const std::set<std::string> every = OwnAddresses("0.0.0.0:7410", 7410);
  EXPECT_EQ(every.count("127.0.0.1:7410"), 1u);
  EXPECT_EQ(every.count("localhost:7410"), 1u);
  EXPECT_EQ(OwnAddresses("node7:7410", 7410),
            (std::set<std::string>{"node7:7410"}));
}

}  // namespace
}  // namespace rankprobe
