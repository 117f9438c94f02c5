// SPDX-License-Identifier: Apache-2.0
#include "web/http/tls_identity.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "web/http/testing/tls_peer.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Names(const std::string& names) {
  const auto found = NamesOfCertificate(MakeIdentity(names).cert_pem);
  EXPECT_TRUE(found.ok()) << found.status();
  return found.ok() ? *found : std::vector<std::string>();
}

TEST(TlsIdentityTest, NamesAreAsABrowserHasThem) {
  EXPECT_THAT(
      Names("DNS:Node0.example,IP:10.0.0.5,IP:fd00::1,email:a@b,DNS:node0"),
      ElementsAre("node0.example", "10.0.0.5", "[fd00::1]", "node0"));
  EXPECT_THAT(Names("DNS:*.example"), IsEmpty());
  EXPECT_THAT(Names(""), IsEmpty());
  EXPECT_TRUE(absl::IsInvalidArgument(NamesOfCertificate("").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(NamesOfCertificate("x").status()));
}

TEST(TlsIdentityTest, WhatCannotBeUsedIsNamed) {
  const TlsIdentity good = MakeIdentity("DNS:a");
  EXPECT_TRUE(MakeTlsContext(good).ok());
  const auto why = [](const std::string& cert, const std::string& key) {
    return std::string(MakeTlsContext({cert, key}).status().message());
  };
  EXPECT_THAT(why("", good.key_pem), HasSubstr("certificate"));
  EXPECT_THAT(why("no PEM", good.key_pem), HasSubstr("certificate"));
  EXPECT_THAT(why(good.cert_pem, ""), HasSubstr("key"));
  EXPECT_THAT(why(good.cert_pem, MakeIdentity("DNS:a").key_pem),
              HasSubstr("key"));
}

}  // namespace
}  // namespace rankprobe
