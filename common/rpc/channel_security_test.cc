// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/channel_security.h"

#include <fstream>
#include <map>

#include "common/testing/scratch_directory.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

class ChannelSecurityTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = directory_.path() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

 private:
  const testing::ScratchDirectory directory_;
};

TEST_F(ChannelSecurityTest, NothingGivenIsPlainText) {
  const auto security = ReadChannelSecurity({});
  ASSERT_TRUE(security.ok());
  EXPECT_TRUE(security->ca_pem.empty());
  EXPECT_TRUE(security->token.empty());
}

TEST_F(ChannelSecurityTest, TheEnvironmentFillsOnlyWhatIsNotGiven) {
  const std::map<std::string, const char*> environment = {
      {"RANKPROBE_TLS_CA", "/ca"}, {"RANKPROBE_TOKEN_FILE", "/t"}};
  ChannelSecurityFiles files;
  files.token_file = "/mine";
  FillFromEnvironment(
      [&](const char* name) -> const char* {
        const auto it = environment.find(name);
        return it == environment.end() ? nullptr : it->second;
      },
      &files);
  EXPECT_EQ(files.tls_ca, "/ca");
  EXPECT_EQ(files.token_file, "/mine");
  EXPECT_EQ(files.tls_cert, "");
}

TEST_F(ChannelSecurityTest, ReadsPemAndToken) {
  ChannelSecurityFiles files;
  files.tls_ca = Write("ca.pem", "-----BEGIN CERTIFICATE-----\n");
  files.token_file = Write("token", "  abcdef\n");
  const auto security = ReadChannelSecurity(files);
  ASSERT_TRUE(security.ok()) << security.status();
  EXPECT_EQ(security->token, "abcdef");
  EXPECT_NE(security->ca_pem, "");
}

TEST_F(ChannelSecurityTest, FaultsNameTheFile) {
  const std::string junk = Write("junk", "no pem here");
  const std::string two = Write("two", "one two");
  const std::string pem = Write("c.pem", "-----BEGIN CERTIFICATE-----\n");
  for (const ChannelSecurityFiles& files :
       {ChannelSecurityFiles{"/none/ca", "", "", "", ""},
        ChannelSecurityFiles{junk, "", "", "", ""},
        ChannelSecurityFiles{pem, pem, "", "", ""},
        ChannelSecurityFiles{pem, pem, pem, "", ""},
        ChannelSecurityFiles{"", "", "", "name", ""},
        ChannelSecurityFiles{"", "", "", "", two},
        ChannelSecurityFiles{"", "", "", "", Write("none", "\n")}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ReadChannelSecurity(files).status()));
  }
}

}  // namespace
}  // namespace rankprobe
