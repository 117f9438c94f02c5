// SPDX-License-Identifier: Apache-2.0
#include "collector/object_store/s3_credentials.h"

#include <map>
#include <string>

#include "common/testing/fault_file_system.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

class S3Credentials : public ::testing::Test {
 protected:
  void Write(const std::string& path, absl::string_view text) {
    auto file = files_.OpenForWrite(path, FileSystem::OpenMode::kTruncate);
    ASSERT_TRUE(file.ok() && (*file)->Append(text).ok());
  }
  absl::StatusOr<SigV4Credentials> Load(const std::string& profile = "") {
    return LoadS3Credentials(
        profile,
        [this](const std::string& name) -> std::optional<std::string> {
          const auto it = environment_.find(name);
          if (it == environment_.end()) return std::nullopt;
          return it->second;
        },
        &files_);
  }

  testing::FaultFileSystem files_;
  std::map<std::string, std::string> environment_ = {{"HOME", "/h"}};
};

TEST_F(S3Credentials, ComeFromTheEnvironmentFirst) {
  ASSERT_TRUE(files_.CreateDirectories("/h/.aws").ok());
  Write("/h/.aws/credentials",
        "[default]\naws_access_key_id = F\naws_secret_access_key = FS\n");
  EXPECT_EQ(Load()->access_key_id, "F");
  environment_["AWS_ACCESS_KEY_ID"] = "E";
  // Half of a pair is not used.
  EXPECT_EQ(Load()->access_key_id, "F");
  environment_["AWS_SECRET_ACCESS_KEY"] = "ES";
  environment_["AWS_SESSION_TOKEN"] = "T";
  EXPECT_EQ(Load()->access_key_id, "E");
  EXPECT_EQ(Load()->session_token, "T");
}

TEST_F(S3Credentials, ComeOutOfTheProfileThatIsNamed) {
  ASSERT_TRUE(files_.CreateDirectories("/h/.aws").ok());
  Write("/h/.aws/credentials",
        "# mine\n[default]\naws_access_key_id=D\naws_secret_access_key=DS\n"
        "[ work ]\r\naws_access_key_id = W\r\naws_secret_access_key = W=S\r\n"
        "aws_session_token = WT\r\n");
  Write("/h/.aws/config",
        "[profile other]\nregion = x\ns3 =\n  aws_access_key_id = no\n"
        "aws_access_key_id = O\naws_secret_access_key = OS\n");
  environment_["AWS_ACCESS_KEY_ID"] = "E";
  environment_["AWS_SECRET_ACCESS_KEY"] = "ES";
  EXPECT_EQ(Load("work")->access_key_id, "W");
  EXPECT_EQ(Load("work")->secret_access_key, "W=S");
  EXPECT_EQ(Load("work")->session_token, "WT");
  EXPECT_EQ(Load("other")->access_key_id, "O");
  environment_["AWS_SHARED_CREDENTIALS_FILE"] = "/elsewhere";
  Write("/elsewhere", "[work]\naws_access_key_id=X\naws_secret_access_key=Y\n");
  EXPECT_EQ(Load("work")->access_key_id, "X");
}

TEST_F(S3Credentials, SayWhereTheyWereSoughtAndNothingElse) {
  const absl::Status none = Load("work").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(none));
  EXPECT_NE(none.message().find("[work] of /h/.aws/credentials"),
            std::string::npos)
      << none;
  environment_["AWS_ACCESS_KEY_ID"] = "A\r\nX-Other: 1";
  environment_["AWS_SECRET_ACCESS_KEY"] = "secret-text";
  const absl::Status bad = Load().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(bad));
  EXPECT_EQ(bad.message().find("secret-text"), std::string::npos);
  EXPECT_EQ(bad.message().find("X-Other"), std::string::npos);
}

}  // namespace
}  // namespace rankprobe
