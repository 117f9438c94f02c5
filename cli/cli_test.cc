// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/client/live_capture.h"
#include "cli/exit_codes.h"
#include "cli/flags/numbers.h"
#include "cli/flags/ranges.h"
#include "cli/output/export_receiver.h"
#include "cli/output/output.h"
#include "cli/output/tar_receiver.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(NumbersTest, WhatIsNoNumberInItsRangeIsSaid) {
  const auto seconds = NumberWithin(0.1, 600);
  for (const char* good : {"0.1", "600", "1e1"}) EXPECT_EQ(seconds(good), "");
  for (const char* bad : {"nan", "inf", "-inf", "0", "601", "", "1s"})
    EXPECT_THAT(seconds(bad), HasSubstr("from 0.1 to 600")) << bad;
  const auto steps = IntegerWithin(1, kLargestStep);
  for (const char* good : {"1", "1000000000000000"}) EXPECT_EQ(steps(good), "");
  for (const char* bad : {"0", "-1", "99999999999999999999", "1.5", "", "0x10"})
    EXPECT_EQ(steps(bad),
              absl::StrCat("\"", bad,
                           "\" is not an integer from 1 to 1000000000000000"));
}

TEST(RangesTest, ReadsListsAndRanges) {
  EXPECT_THAT(*ParseRanges("--steps", "0,4-6,5"), ElementsAre(0, 4, 5, 6));
  EXPECT_TRUE(ParseRanges("--steps", "")->empty());
  for (const char* bad : {"a", "1-", "-1", "5-2", "1,,2", "1-2-3",
                          "99999999999999999999", "1000001", " 1"}) {
    const auto parsed = ParseRanges("--steps", bad);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("--steps"));
  }
}

TEST(ExportFilesTest, PathsFromTheCollectorAreNotTrusted) {
  for (const char* good : {"manifest.json", "step0/rank1/dump.json", "a/..b/c"})
    EXPECT_TRUE(IsSafeRelativePath(good));
  for (const char* bad : {"", "/etc/passwd", "..", "../x", "a/../b", "a//b",
                          "a/", "./a", "a/.", "a\nb"}) {
    EXPECT_FALSE(IsSafeRelativePath(bad)) << bad;
  }
}

TEST(ExportFilesTest, NothingIsLeftOfABrokenExport) {
  std::string root = ::testing::TempDir() + "exportXXXXXX";
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  const std::unique_ptr<FileSystem> file_system = NewPosixFileSystem();
  {
    const auto opened = ExportFiles::Open(file_system.get(), root,
                                          StagedTree::Leftovers::kDelete);
    ASSERT_TRUE(opened.ok()) << opened.status();
    ExportFiles& files = **opened;
    v1::ExportEvent event;
    event.set_directory("step0/rank0");
    ASSERT_TRUE(files.OnEvent(event).ok());
    event.mutable_file_begin()->set_path("step0/rank0/dump.json");
    event.mutable_file_begin()->set_length_bytes(10);
    ASSERT_TRUE(files.OnEvent(event).ok());
    event.mutable_file_data()->set_data("12345");
    ASSERT_TRUE(files.OnEvent(event).ok());
    EXPECT_EQ(files.Finish("x").code(), absl::StatusCode::kDataLoss);
    event.mutable_file_begin()->set_path("../evil");
    EXPECT_FALSE(files.OnEvent(event).ok());
  }
  EXPECT_TRUE(file_system->List(root)->empty());
  ASSERT_TRUE(file_system->DeleteTree(root).ok());
}

TEST(ExportFilesTest, WholeFilesAreWritten) {
  std::string root = ::testing::TempDir() + "exportXXXXXX";
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  const std::unique_ptr<FileSystem> file_system = NewPosixFileSystem();
  const auto files = ExportFiles::Open(file_system.get(), root,
                                       StagedTree::Leftovers::kDelete);
  ASSERT_TRUE(files.ok()) << files.status();
  v1::ExportEvent event;
  event.set_directory("step0/rank0");
  ASSERT_TRUE((*files)->OnEvent(event).ok());
  for (const char* name : {"dump.json", "stack.json"}) {
    v1::ExportFile* file = event.mutable_files()->add_files();
    file->set_path(absl::StrCat("step0/rank0/", name));
    file->set_data(name);
  }
  ASSERT_TRUE((*files)->OnEvent(event).ok());
  event.mutable_files()->mutable_files(1)->set_path("../evil");
  EXPECT_TRUE(absl::IsPermissionDenied((*files)->OnEvent(event)));
  ASSERT_TRUE((*files)->Finish("x").ok());
  EXPECT_FALSE(file_system->Exists(root + "/evil"));
  for (const char* name : {"dump.json", "stack.json"}) {
    const auto size =
        file_system->FileSize(absl::StrCat(root, "/step0/rank0/", name));
    ASSERT_TRUE(size.ok()) << size.status();
    EXPECT_EQ(*size, std::strlen(name));
  }
  ASSERT_TRUE(file_system->DeleteTree(root).ok());
}

class TarFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "tarXXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    path_ = root_ + "/out.tar";
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  // The exporter's events for one file.
  static absl::Status Add(TarFiles* tar, const std::string& name) {
    v1::ExportEvent event;
    v1::ExportFile* const file = event.mutable_files()->add_files();
    file->set_path(name);
    file->set_data("data of " + name);
    return tar->OnEvent(event);
  }
  std::string Content() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string root_, path_;
};

// E03: in the C locale, which tests use.
TEST_F(TarFilesTest, NamesAreUtf8InAnyLocale) {
  const auto tar = TarFiles::Open(path_);
  ASSERT_TRUE(tar.ok()) << tar.status();
  const std::string name = "step0/rank0/gr\u00f6\u00dfe \u6a21\u578b.pt";
  ASSERT_TRUE(Add(tar->get(), name).ok());
  EXPECT_FALSE(std::filesystem::exists(path_)) << "not before it is whole";
  ASSERT_TRUE((*tar)->Finish().ok());
  EXPECT_THAT(Content(), HasSubstr("path=" + name + "\n"));
  EXPECT_THAT(Content(), HasSubstr("data of " + name));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".tmp"));
}

// T04
TEST_F(TarFilesTest, AFailureLeavesTheOlderFile) {
  std::ofstream(path_) << "the good one";
  {
    const auto tar = TarFiles::Open(path_);
    ASSERT_TRUE(tar.ok()) << tar.status();
    ASSERT_TRUE(Add(tar->get(), "step0/rank0/dump.json").ok());
    EXPECT_TRUE(absl::IsPermissionDenied(Add(tar->get(), "../evil")));
  }
  EXPECT_EQ(Content(), "the good one");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".tmp"));
  // An existing file of that name, which the export did not make, is kept.
  std::ofstream(path_ + ".tmp") << "somebody's";
  EXPECT_THAT(std::string(TarFiles::Open(path_).status().message()),
              HasSubstr("out.tar.tmp"));
  EXPECT_EQ(std::filesystem::file_size(path_ + ".tmp"), 10u);
}

// T05
TEST_F(TarFilesTest, ADeviceIsNotDeleted) {
  std::filesystem::create_symlink("/dev/null", path_);
  for (const bool fails : {true, false}) {
    const auto tar = TarFiles::Open(path_);
    ASSERT_TRUE(tar.ok()) << tar.status();
    EXPECT_EQ(Add(tar->get(), fails ? "../evil" : "good").ok(), !fails);
    if (!fails) EXPECT_TRUE((*tar)->Finish().ok());
  }
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
  EXPECT_TRUE(std::filesystem::exists("/dev/null"));
}

TEST_F(TarFilesTest, AFileThatTakesThePlaceOfADeviceIsNotWrittenOver) {
  const std::string good = root_ + "/good.tar", link = root_ + "/link";
  std::atomic<bool> done = false;
  std::thread swaps([&] {
    for (bool device = true; !done; device = !device) {
      std::filesystem::create_symlink(device ? "/dev/null" : good, link);
      std::filesystem::rename(link, path_);
    }
  });
  std::string after = "the good one";
  for (int i = 0; i < 3000 && after == "the good one"; ++i) {
    std::ofstream(good) << "the good one";
    {
      const auto tar = TarFiles::Open(path_);
      if (tar.ok()) Add(tar->get(), "../evil").IgnoreError();
      if (tar.ok()) Add(tar->get(), "step0/rank0/dump.json").IgnoreError();
      if (tar.ok()) (*tar)->Finish().IgnoreError();
    }
    std::ifstream file(good, std::ios::binary);
    after = {std::istreambuf_iterator<char>(file), {}};
  }
  done = true;
  swaps.join();
  EXPECT_EQ(after, "the good one");
}

TEST(TableTest, AlignsNumbersToTheRight) {
  Table table({"RUN", "STEPS"});
  table.Add({"a", "7"});
  table.Add({"longer", "100"});
  EXPECT_EQ(table.ToText(), "RUN     STEPS\na           7\nlonger    100\n");
}

TEST(TableTest, OneLongNameWidensNoOtherRow) {
  Table table({"RUN", "STEPS"});
  const std::string name(255, 'x');
  table.Add({name, "7"});
  table.Add({"short", "12"});
  EXPECT_EQ(table.ToText(),
            absl::StrCat("RUN", std::string(57, ' '), "  STEPS\n", name,
                         "      7\nshort", std::string(55, ' '), "     12\n"));
}

TEST(TableTest, AlignsByWhatIsSeen) {
  Table table({"RUN", "STEPS"});
  table.Add({"l\u00e4ufe", "7"});
  table.Add({"\u6a21\u578b", "8"});
  table.Add({"e\u0301", "9"});
  EXPECT_EQ(table.ToText(),
            "RUN    STEPS\nl\u00e4ufe      7\n\u6a21\u578b       8\n"
            "e\u0301          9\n");
}

// E15, C07, T07
TEST(OutputTest, NothingFromElsewhereSteersTheTerminal) {
  Table table({"RUN", "HOST"});
  table.Add({"a\x1b]0;owned\x07", "h\nfake  row"});
  EXPECT_EQ(table.ToText(),
            "RUN                HOST\na\\x1b]0;owned\\x07  h\\nfake  row\n");
  ::testing::internal::CaptureStdout();
  const std::string reason = "gone\u009b31m\u202e";
  Print(stdout, "%s:\n%5d%% %s %s|%s", "line\none", 7, reason, reason.c_str(),
        Lines{"\na\x1b[2J\nb\n"});
  PrintJson("{\"run\": \"\u202e\x7f\"}");
  std::fflush(stdout);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            "line\\none:\n    7% gone\\u009b31m\\u202e "
            "gone\\u009b31m\\u202e|\na\\x1b[2J\nb\n"
            "{\"run\": \"\\u202e\\u007f\"}\n");
}

TEST(OutputTest, Bytes) {
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
}

TEST(ExitCodeTest, EveryKindHasItsCode) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("")), 4);
  EXPECT_EQ(ExitCodeOf(absl::AbortedError("")), 5);
}

TEST(CaptureConfigTest, RecordsTheCallsWithTheirTensors) {
  const auto config = CaptureConfig(
      R"({"task":"statistics","level":"mix","dump_path":"/d","step":[3,4],)"
      R"("rank":[1],"risk_level":"ALL","statistics":{"list":["conv"]}})",
      {"Torch.mul.3.forward"});
  ASSERT_TRUE(config.ok()) << config.status();
  google::protobuf::Struct parsed;
  ASSERT_TRUE(
      google::protobuf::util::JsonStringToMessage(*config, &parsed).ok());
  const auto& fields = parsed.fields();
  EXPECT_EQ(fields.at("task").string_value(), "tensor");
  EXPECT_EQ(fields.at("level").string_value(), "L1");
  EXPECT_EQ(fields.at("dump_path").string_value(), "/d");
  EXPECT_EQ(fields.at("risk_level").string_value(), "ALL");
  EXPECT_EQ(fields.at("step").list_value().values_size(), 0);
  EXPECT_EQ(fields.at("rank").list_value().values_size(), 0);
  EXPECT_FALSE(fields.contains("statistics"));
  const auto& list =
      fields.at("tensor").struct_value().fields().at("list").list_value();
  ASSERT_EQ(list.values_size(), 1);
  EXPECT_EQ(list.values(0).string_value(), "Torch.mul.3.forward");
}

TEST(CaptureConfigTest, LevelFollowsTheCalls) {
  const auto level = [](const std::vector<std::string>& calls) {
    google::protobuf::Struct parsed;
    const auto config = CaptureConfig("", calls);
    EXPECT_TRUE(config.ok());
    EXPECT_TRUE(
        google::protobuf::util::JsonStringToMessage(*config, &parsed).ok());
    return parsed.fields().at("level").string_value();
  };
  EXPECT_EQ(level({"Module.a.A.forward.0"}), "L0");
  EXPECT_EQ(level({"Module.a.A.forward.0", "Torch.mul.0.forward"}), "mix");
  EXPECT_FALSE(CaptureConfig("[1]", {"Torch.mul.0.forward"}).ok());
}

}  // namespace
}  // namespace rankprobe
