// SPDX-License-Identifier: Apache-2.0
#include "collector/object_store/s3_location.h"

#include <map>
#include <string>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

EnvironmentFn Environment(std::map<std::string, std::string> values) {
  return [values](const std::string& name) -> std::optional<std::string> {
    const auto it = values.find(name);
    if (it == values.end()) return std::nullopt;
    return it->second;
  };
}

S3Location Parse(const std::string& url,
                 std::map<std::string, std::string> environment = {}) {
  const auto location = ParseS3Location(url, Environment(environment));
  EXPECT_TRUE(location.ok()) << location.status();
  return location.value_or(S3Location());
}

TEST(S3Location, IsAmazonsWithoutAnEndpoint) {
  const S3Location place =
      Parse("s3://bucket/a/b/", {{"AWS_REGION", "eu-west-1"}});
  EXPECT_EQ(place.Name(), "s3://bucket/a/b");
  EXPECT_EQ(place.Host(), "bucket.s3.eu-west-1.amazonaws.com");
  EXPECT_EQ(place.Url(), "https://bucket.s3.eu-west-1.amazonaws.com");
  EXPECT_EQ(place.PathOf("x/y"), "/a/b/x/y");
  EXPECT_EQ(place.PathOf(""), "/");
  EXPECT_EQ(Parse("s3://bucket").PathOf("x"), "/x");
  EXPECT_EQ(Parse("s3://bucket").region, "us-east-1");
  // No wildcard certificate covers two more labels.
  EXPECT_TRUE(Parse("s3://my.bucket").path_style);
}

TEST(S3Location, HasTheBucketInThePathOfAnEndpoint) {
  const S3Location place =
      Parse("s3://bucket/p?endpoint=http://127.0.0.1:7480&region=here");
  EXPECT_EQ(place.Host(), "127.0.0.1:7480");
  EXPECT_EQ(place.Url(), "http://127.0.0.1:7480");
  EXPECT_EQ(place.PathOf("x"), "/bucket/p/x");
  EXPECT_EQ(place.PathOf(""), "/bucket");
  EXPECT_EQ(place.region, "here");
  const S3Location host = Parse(
      "s3://bucket?addressing=virtual&endpoint=https%3A%2F%2Fs3.site.org");
  EXPECT_EQ(host.Host(), "bucket.s3.site.org");
}

TEST(S3Location, TakesFromTheEnvironmentWhatTheUrlDoesNotSay) {
  const std::map<std::string, std::string> environment = {
      {"AWS_ENDPOINT_URL", "https://general"},
      {"AWS_ENDPOINT_URL_S3", "https://s3.site"},
      {"AWS_DEFAULT_REGION", "r2"},
      {"AWS_PROFILE", "mine"},
      {"AWS_CA_BUNDLE", "/ca.pem"}};
  const S3Location place = Parse("s3://bucket", environment);
  EXPECT_EQ(place.endpoint, "https://s3.site");
  EXPECT_EQ(place.region, "r2");
  EXPECT_EQ(place.profile, "mine");
  EXPECT_EQ(place.ca_file, "/ca.pem");
  EXPECT_EQ(Parse("s3://bucket?profile=other", environment).profile, "other");
}

TEST(S3Location, RefusesInOneLine) {
  for (const char* const url :
       {"s3://", "s3://B", "s3://bucket?x=1",
        "s3://bucket?endpoint=", "s3://bucket?endpoint=ftp://h",
        "s3://bucket?endpoint=http://h", "s3://bucket?addressing=other",
        "s3://bucket/../x", "s3://bucket/a b", "s3://bucket?region=a%0ab",
        "s3://bucket?endpoint=https://a/b", "s3://bucket?endpoint=%zz",
        "/directory", "s3://bucket?endpoint=https://user@h"}) {
    const auto location = ParseS3Location(url, Environment({}));
    EXPECT_TRUE(absl::IsInvalidArgument(location.status())) << url;
    EXPECT_EQ(location.status().message().find('\n'), std::string::npos);
  }
  EXPECT_TRUE(ParseS3Location("s3://bucket?endpoint=http://h&insecure=1",
                              Environment({}))
                  .ok());
}

}  // namespace
}  // namespace rankprobe
