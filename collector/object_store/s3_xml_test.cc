// SPDX-License-Identifier: Apache-2.0
#include "collector/object_store/s3_xml.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(S3Xml, ReadsAList) {
  const auto list = ParseS3List(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>"
      "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
      "<Name>b</Name><IsTruncated>true</IsTruncated>"
      "<Contents><Key>a/b</Key><Size>12</Size><Owner><ID>x</ID></Owner>"
      "</Contents><Contents><Size>0</Size><Key>c&amp;d</Key></Contents>"
      "</ListBucketResult>");
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->objects.size(), 2u);
  EXPECT_EQ(list->objects[0].key, "a/b");
  EXPECT_EQ(list->objects[0].bytes, 12u);
  EXPECT_EQ(list->objects[1].key, "c&d");
  EXPECT_TRUE(list->more);
}

TEST(S3Xml, ReadsErrors) {
  const S3Error error = ParseS3Error(
      "<Error><Code>SlowDown</Code><Message>Please\nwait</Message></Error>");
  EXPECT_EQ(error.code, "SlowDown");
  EXPECT_EQ(error.message, "Please\nwait");
  EXPECT_EQ(ParseS3Error("<html><body>no</body></html>").code, "");
  EXPECT_EQ(ParseS3Error("").code, "");
  // Truncated after the relevant part.
  EXPECT_EQ(ParseS3Error("<Error><Code>SlowDown</Code><Mess").code, "SlowDown");
}

TEST(S3Xml, RefusesWhatItShouldNotGet) {
  std::string deep;
  for (int i = 0; i < 40; ++i) absl::StrAppend(&deep, "<a>");
  const std::string bomb =
      "<!DOCTYPE x [<!ENTITY a \"aaaaaaaaaa\">]>"
      "<ListBucketResult>&a;</ListBucketResult>";
  const std::string long_text =
      absl::StrCat("<ListBucketResult><Contents><Key>",
                   std::string(100 << 10, 'k'), "</Key>");
  for (const std::string& text :
       {std::string(), std::string("<ListBucketResult>"), deep, bomb, long_text,
        std::string("<Other/>"),
        std::string("<ListBucketResult><Contents><Key>a</Key></Contents>"
                    "</ListBucketResult>"),
        std::string("<ListBucketResult><Contents><Key>a</Key><Size>-1</Size>"
                    "</Contents></ListBucketResult>"),
        std::string(kMaxS3XmlBytes + 1, ' ')}) {
    const auto list = ParseS3List(text);
    EXPECT_EQ(list.status().code(), absl::StatusCode::kInternal)
        << text.substr(0, 60);
    EXPECT_EQ(list.status().message().find('\n'), std::string::npos);
  }
}

TEST(S3Xml, OfUploadsInParts) {
  EXPECT_EQ(*ParseS3UploadId("<InitiateMultipartUploadResult><UploadId>2~x"
                             "</UploadId></InitiateMultipartUploadResult>"),
            "2~x");
  EXPECT_FALSE(ParseS3UploadId("<InitiateMultipartUploadResult/>").ok());
  EXPECT_EQ(S3CompleteUpload({"\"e1\"", "e<2"}),
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber>"
            "<ETag>&quot;e1&quot;</ETag></Part><Part><PartNumber>2"
            "</PartNumber><ETag>e&lt;2</ETag></Part>"
            "</CompleteMultipartUpload>");
}

}  // namespace
}  // namespace rankprobe
