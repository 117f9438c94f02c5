// SPDX-License-Identifier: Apache-2.0
#include "collector/object_store/sigv4.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/time/civil_time.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

// Returns the text after "Signature=".
std::string SignatureOf(const SigV4Request& request,
                        const SigV4Credentials& credentials,
                        const SigV4Scope& scope, absl::Time time) {
  const std::string text =
      SigV4Authorization(request, credentials, scope, time);
  return text.substr(text.rfind('=') + 1);
}

const absl::Time kMay24 =
    absl::FromCivil(absl::CivilSecond(2013, 5, 24), absl::UTCTimeZone());
const absl::Time kAugust30 = absl::FromCivil(
    absl::CivilSecond(2015, 8, 30, 12, 36, 0), absl::UTCTimeZone());

// The examples of Amazon's "Signature Calculations for the Authorization
// Header: Transferring Payload in a Single Chunk".
SigV4Request S3Example(const std::string& method, const std::string& path,
                       absl::string_view body) {
  SigV4Request request;
  request.method = method;
  request.path = path;
  request.payload_sha256 = HexSha256(body);
  request.headers = {{"Host", "examplebucket.s3.amazonaws.com"},
                     {"x-amz-date", "20130524T000000Z"},
                     {"x-amz-content-sha256", request.payload_sha256}};
  return request;
}

std::string SignS3(const SigV4Request& request) {
  return SignatureOf(
      request,
      {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""},
      {"us-east-1", "s3"}, kMay24);
}

TEST(SigV4, SignsAmazonsExamplesOfS3) {
  SigV4Request get = S3Example("GET", "/test.txt", "");
  get.headers.emplace_back("Range", "bytes=0-9");
  EXPECT_EQ(SignS3(get),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  SigV4Request put =
      S3Example("PUT", "/test$file.text", "Welcome to Amazon S3.");
  put.headers.emplace_back("Date", "Fri, 24 May 2013 00:00:00 GMT");
  put.headers.emplace_back("x-amz-storage-class", "REDUCED_REDUNDANCY");
  EXPECT_EQ(SignS3(put),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  SigV4Request lifecycle = S3Example("GET", "/", "");
  lifecycle.query = {{"lifecycle", ""}};
  EXPECT_EQ(SignS3(lifecycle),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  SigV4Request list = S3Example("GET", "/", "");
  list.query = {{"prefix", "J"}, {"max-keys", "2"}};
  EXPECT_EQ(SignS3(list),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

// Cases of Amazon's Signature Version 4 test suite.
SigV4Request SuiteCase(const std::string& method) {
  SigV4Request request;
  request.method = method;
  request.path = "/";
  request.payload_sha256 = HexSha256("");
  request.headers = {{"Host", "example.amazonaws.com"},
                     {"X-Amz-Date", "20150830T123600Z"}};
  return request;
}

std::string SignSuite(const SigV4Request& request) {
  return SignatureOf(
      request, {"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""},
      {"us-east-1", "service"}, kAugust30);
}

TEST(SigV4, SignsCasesOfTheTestSuite) {
  EXPECT_EQ(SignSuite(SuiteCase("GET")),
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
  EXPECT_EQ(SignSuite(SuiteCase("POST")),
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b");
  // get-vanilla-query-order-key-case
  SigV4Request ordered = SuiteCase("GET");
  ordered.query = {{"Param2", "value2"}, {"Param1", "value1"}};
  EXPECT_EQ(SignSuite(ordered),
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
  // get-vanilla-query-unreserved
  SigV4Request unreserved = SuiteCase("GET");
  const std::string all =
      "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  unreserved.query = {{all, all}};
  EXPECT_EQ(SignSuite(unreserved),
            "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197");
  // get-vanilla-utf8-query
  SigV4Request utf8 = SuiteCase("GET");
  utf8.query = {{"\xe1\x88\xb4", "bar"}};
  EXPECT_EQ(SignSuite(utf8),
            "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04");
}

TEST(SigV4, FoldsBlanksOfHeadersAndSortsTheirNames) {
  SigV4Request request = SuiteCase("GET");
  request.headers.emplace_back("My-Header", "  a   b  ");
  const std::string text = SigV4CanonicalRequest(request);
  EXPECT_TRUE(absl::StrContains(text, "\nmy-header:a b\n")) << text;
  EXPECT_TRUE(absl::StrContains(text, "\nhost;my-header;x-amz-date\n")) << text;
}

TEST(SigV4, EncodesPathsAndQueries) {
  EXPECT_EQ(UriEncode("a b/c+d=\xc3\xa9~", true), "a%20b/c%2Bd%3D%C3%A9~");
  EXPECT_EQ(UriEncode("a/b", false), "a%2Fb");
  EXPECT_EQ(CanonicalQuery({{"uploads", ""}, {"a", "b/c"}}),
            "a=b%2Fc&uploads=");
}

}  // namespace
}  // namespace rankprobe
