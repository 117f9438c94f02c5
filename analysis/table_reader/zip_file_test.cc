// SPDX-License-Identifier: Apache-2.0
#include "analysis/table_reader/zip_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "analysis/testing/zip_text.h"

namespace rankprobe::analysis {
namespace {

using testing::Deflated;
using ::testing::HasSubstr;
using testing::TextFile;
using testing::ZipPart;
using testing::ZipText;

// The member `name` of the zip file, or what is said of it.
std::string ReadMember(const std::string& text, const std::string& name,
                       uint64_t max_bytes = 1 << 20) {
  const TextFile file(text);
  const auto zip = ZipFile::Open(&file, file.size());
  if (!zip.ok()) return absl::StrCat("! ", zip.status().message());
  std::string out;
  const absl::Status status =
      zip->Read(name, max_bytes, [&out](absl::string_view piece) {
        out.append(piece.data(), piece.size());
        return absl::OkStatus();
      });
  return status.ok() ? out : absl::StrCat("! ", status.message());
}

TEST(ZipFileTest, StoredAndDeflatedMembers) {
  std::string large;
  for (int i = 0; i < 50000; ++i) absl::StrAppend(&large, i);
  const std::string text =
      ZipText({{"a", "plain", false}, {"b", large}, {"c", ""}});
  EXPECT_EQ(ReadMember(text, "a"), "plain");
  EXPECT_EQ(ReadMember(text, "b"), large);
  EXPECT_EQ(ReadMember(text, "c"), "");
  EXPECT_THAT(ReadMember(text, "d"), HasSubstr("! has no d"));
}

TEST(ZipFileTest, ABombCostsItsLimitOnly) {
  // 1 GB of zeros in 1 MB: refused by what the directory says.
  EXPECT_THAT(ReadMember(ZipText({{"a", std::string(8 << 20, '0')}}), "a"),
              HasSubstr("has 8388608 bytes; at most 1048576 are read"));
  // A directory that lies: no byte more than it says is inflated.
  ZipPart liar{"a", std::string(8 << 20, '0')};
  liar.size = 1000;
  EXPECT_THAT(ReadMember(ZipText({liar}), "a"), HasSubstr("longer than"));
}

TEST(ZipFileTest, WhatIsDamagedIsSaid) {
  const std::string good = ZipText({{"a", "some text that is deflated"}});
  EXPECT_THAT(ReadMember("", "a"), HasSubstr("no zip file"));
  EXPECT_THAT(ReadMember("name,value\n" + std::string(100, 'x'), "a"),
              HasSubstr("no zip file"));
  ZipPart longer{"a", "text", false};
  longer.size = 5;
  EXPECT_THAT(ReadMember(ZipText({longer}), "a"), HasSubstr("!"));
  ZipPart encrypted{"a", "text"};
  encrypted.flags = 1;
  EXPECT_THAT(ReadMember(ZipText({encrypted}), "a"), HasSubstr("encrypted"));
  ZipPart lzma{"a", "text"};
  lzma.method = 14;
  EXPECT_THAT(ReadMember(ZipText({lzma}), "a"), HasSubstr("method 14"));
  EXPECT_THAT(ReadMember(ZipText({{"a", "1"}, {"a", "2"}}), "a"),
              HasSubstr("two zip members"));
  ZipPart cut{"a", Deflated("some text").substr(0, 6), false};
  cut.method = 8;
  cut.size = 9;
  EXPECT_THAT(ReadMember(ZipText({cut}), "a"), HasSubstr("damaged"));
  // Each byte, each bit: the member, or an error; never a crash.
  for (size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      const std::string read = ReadMember(bad, "a");
      if (read.substr(0, 1) != "!") {
        EXPECT_EQ(read, "some text that is deflated");
      }
    }
    EXPECT_THAT(ReadMember(good.substr(0, at), "a"), HasSubstr("!"));
  }
}

}  // namespace
}  // namespace rankprobe::analysis
