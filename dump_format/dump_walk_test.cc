// SPDX-License-Identifier: Apache-2.0
// Walking a file piece by piece: values at the edges of the window, and files
// that end or go wrong anywhere.
#include "dump_format/dump_walk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "dump_format/testing/testing_files.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using testing::TempDir;

using Entries = std::vector<std::pair<std::string, std::string>>;

absl::Status Walk(JsonStream* stream, DumpHead* head, Entries* entries,
                  uint64_t max_bytes = 1 << 30) {
  std::string scratch;
  return WalkDump(stream, head, [&](const std::string& name) -> absl::Status {
    RP_ASSIGN_OR_RETURN(const absl::string_view text,
                        stream->ReadValue(max_bytes, &scratch));
    entries->emplace_back(name, std::string(text));
    return absl::OkStatus();
  });
}

absl::Status WalkText(absl::string_view text, Entries* entries) {
  JsonStream stream(text);
  return Walk(&stream, nullptr, entries);
}

TEST(DumpWalk, TheHeadMayStandBehindTheDataAndNamesMayComeTwice) {
  const std::string text =
      R"({"level": null, "other": [{"task": "no"}], "data": {"a": [1, 2],
          "b": {"x": "}"}, "a": NaN}, "task": "tensor", "framework": "p\u0079"})";
  JsonStream stream(text);
  DumpHead head;
  Entries entries;
  ASSERT_EQ(Walk(&stream, &head, &entries), absl::OkStatus());
  EXPECT_THAT(entries,
              ElementsAre(Pair("a", "[1, 2]"), Pair("b", R"({"x": "}"})"),
                          Pair("a", "NaN")));
  EXPECT_EQ(head.task, "tensor");
  EXPECT_EQ(head.framework, "py");
  EXPECT_EQ(head.level, std::nullopt);
  EXPECT_EQ(head.dump_data_dir, std::nullopt);
}

// The window is 1 MiB: entries lie before, across and behind its ends at every
// distance a value may have from them.
TEST(DumpWalk, ValuesAcrossTheEndsOfTheWindowAreWhole) {
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  const TempDir dir;
  for (size_t shift = 0; shift < 24; ++shift) {
    std::string text = R"({"data": {"fill": ")";
    text.append((1 << 20) - text.size() - shift, 'x');
    absl::StrAppend(&text, R"(", "near": 12345, "far": [")",
                    std::string((2 << 20) + shift, 'y'), R"("], "end": {}}})");
    const std::string path = dir.Write("dump.json", text);
    const auto file = files->OpenForRead(path);
    ASSERT_TRUE(file.ok());
    JsonStream stream(file->get(), text.size());
    Entries entries;
    ASSERT_EQ(Walk(&stream, nullptr, &entries), absl::OkStatus()) << shift;
    ASSERT_EQ(entries.size(), 4u);
    EXPECT_EQ(entries[0].second.find_first_not_of('x', 1),
              entries[0].second.size() - 1);
    EXPECT_THAT(entries[1], Pair("near", "12345")) << shift;
    EXPECT_EQ(entries[2].second,
              absl::StrCat("[\"", std::string((2 << 20) + shift, 'y'), "\"]"));
    EXPECT_THAT(entries[3], Pair("end", "{}"));
  }
}

TEST(DumpWalk, AValueThatIsTooLongIsAnErrorAndConsumed) {
  const std::string text = R"({"data": {"a": "123456789", "b": 1}})";
  JsonStream stream(text);
  Entries entries;
  std::string scratch;
  int refused = 0;
  ASSERT_EQ(WalkDump(&stream, nullptr,
                     [&](const std::string& name) {
                       const auto value = stream.ReadValue(4, &scratch);
                       if (absl::IsResourceExhausted(value.status())) {
                         ++refused;
                         return absl::OkStatus();
                       }
                       if (value.ok()) entries.emplace_back(name, *value);
                       return value.status();
                     }),
            absl::OkStatus());
  EXPECT_EQ(refused, 1);
  EXPECT_THAT(entries, ElementsAre(Pair("b", "1")));
}

TEST(DumpWalk, WhatIsNoDumpIsRefusedWhereverItEnds) {
  const std::string good = R"({"task": "tensor", "data": {"a": [1], "b": {}}})";
  Entries entries;
  ASSERT_EQ(WalkText(good, &entries), absl::OkStatus());
  for (size_t length = 0; length < good.size(); ++length) {
    const absl::Status status = WalkText(good.substr(0, length), &entries);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << length << ": " << status;
  }
  for (const auto& [text, why] :
       std::vector<std::pair<std::string, std::string>>{
           {"{}", "has no \"data\""},
           {"[]", "expected {"},
           {R"({"data": []})", "data is not an object"},
           {R"({"data": {"a" 1}})", "expected :"},
           {R"({"data": {"a": ]}})", "wrong bracket"},
           {good + "x", "text after the value"}}) {
    const absl::Status status = WalkText(text, &entries);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why)) << text;
  }
  JsonStream stream(R"({"task": 5, "data": {}})");
  DumpHead head;
  EXPECT_THAT(std::string(Walk(&stream, &head, &entries).message()),
              HasSubstr("task is not a string"));
}

}  // namespace
}  // namespace rankprobe
