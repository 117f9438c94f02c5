// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/config_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "agent/runtime/testing/fake_session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

// Stores edits.
class EditedSession : public testing::FakeSession {
 public:
  explicit EditedSession(testing::Received* received) : FakeSession(received) {}
  void EditConfig(const ConfigEdit& edit, bool at_once) override {
    edits.push_back(edit);
    EXPECT_TRUE(at_once);
  }
  std::vector<ConfigEdit> edits;
};

class ConfigFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "config_file_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
    path_ = directory_ + "/config.json";
    Write(R"({"dump_path": "d", "dump_enable": false})");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Write(const std::string& text) { std::ofstream(path_) << text; }
  // Returns the text, "FAULT: ..", or "-" for no edit.
  static std::string Say(ConfigFile* file) {
    const auto read = file->Look();
    if (!read.has_value()) return "-";
    return read->ok() ? **read
                      : "FAULT: " + std::string(read->status().message());
  }

  std::string directory_, path_;
};

TEST_F(ConfigFileTest, AnEditIsSaidOnce) {
  ConfigFile file(path_);
  EXPECT_EQ(Say(&file), "-");
  Write("{\"a\": 1}");
  EXPECT_EQ(Say(&file), "{\"a\": 1}");
  EXPECT_EQ(Say(&file), "-");
  Write("{\"a\": 1}");
  EXPECT_EQ(Say(&file), "-") << "touched, not edited";
}

TEST_F(ConfigFileTest,
       AnEditThatLeavesSizeAndTimeIsSeenAsLongAsTheFileIsYoung) {
  Write("{\"a\": 1}");
  ConfigFile file(path_);
  struct stat before = {};
  ASSERT_EQ(::stat(path_.c_str(), &before), 0);
  Write("{\"a\": 2}");
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  EXPECT_EQ(Say(&file), "{\"a\": 2}");
}

TEST_F(ConfigFileTest, AFileMovedIntoItsPlaceIsAnEditAndAGapIsNone) {
  ConfigFile file(path_);
  std::filesystem::rename(path_, path_ + "~");
  EXPECT_EQ(Say(&file), "-");
  Write("{\"a\": 3}");
  EXPECT_EQ(Say(&file), "{\"a\": 3}");
  std::filesystem::rename(path_ + "~", path_);
  EXPECT_THAT(Say(&file), HasSubstr("dump_enable"));
}

TEST_F(ConfigFileTest, WhatCannotBeReadIsAFaultAndTheSameTextAfterItIsNews) {
  ConfigFile file(path_);
  Write("{\"a\": 4}");
  EXPECT_EQ(Say(&file), "{\"a\": 4}");
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_THAT(Say(&file), HasSubstr("FAULT"));
  EXPECT_EQ(Say(&file), "-");
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(Say(&file), "-") << "the same fault, and nobody waits for a writer";
  std::filesystem::remove(path_);
  Write("{\"a\": 4}");
  EXPECT_EQ(Say(&file), "{\"a\": 4}");
  Write(std::string((1 << 20) + 1, ' '));
  EXPECT_THAT(Say(&file), HasSubstr("FAULT: it has more than"));
}

TEST_F(ConfigFileTest, ALackOfDescriptorsIsNoEditAndIsTriedAgain) {
  ConfigFile file(path_);
  Write("{\"a\": 5}");
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string first = Say(&file);
  const std::string second = Say(&file);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(first, "-");
  EXPECT_EQ(second, "-");
  EXPECT_EQ(Say(&file), "{\"a\": 5}");
  EXPECT_EQ(Say(&file), "-");
}

// The first page of a process' memory: a regular file that can be opened, and
// whose bytes cannot be read (EIO).
TEST_F(ConfigFileTest, AnErrorOfTheDiskIsNoEditAndIsTriedAgain) {
  ConfigFile file(path_);
  std::filesystem::remove(path_);
  std::filesystem::create_symlink("/proc/self/mem", path_);
  EXPECT_EQ(Say(&file), "-");
  EXPECT_EQ(Say(&file), "-");
  std::filesystem::remove(path_);
  Write("{\"a\": 6}");
  EXPECT_EQ(Say(&file), "{\"a\": 6}");
}

// A retry would not help.
TEST_F(ConfigFileTest, WhatCannotBeAConfigIsAFaultStill) {
  ConfigFile file(path_);
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_THAT(Say(&file), HasSubstr("FAULT: is not a regular file"));
}

TEST_F(ConfigFileTest, ArgumentsBeatTheFile) {
  ConfigOverrides overrides;
  EXPECT_EQ(MergeOverrides("{\"task\": \"tensor\"}", overrides),
            "{\"task\": \"tensor\"}");
  overrides.level = "L0";
  overrides.step_json = "[1, \"3-4\"]";
  EXPECT_EQ(MergeOverrides(R"({"task": "tensor", "level": "mix"})", overrides),
            R"({"task":"tensor","level":"L0","step":[1,"3-4"]})");
  EXPECT_EQ(MergeOverrides("{", overrides), "{");
  EXPECT_EQ(MergeOverrides("[1]", overrides), "[1]");
}

TEST_F(ConfigFileTest, AnEditIsCheckedBeforeItIsHandedOn) {
  testing::Received received;
  EditedSession session(&received);
  EditReport report = SubmitEdit(
      path_, R"({"dump_path": "d", "task": "tensor", "nonsense": 1})", true,
      &session);
  EXPECT_EQ(report.fault, "");
  EXPECT_THAT(report.warnings, ::testing::Contains(HasSubstr("nonsense")));
  report =
      SubmitEdit(path_, R"({"dump_path": "d", "task": "x"})", true, &session);
  EXPECT_THAT(report.fault, HasSubstr("task"));
  ASSERT_EQ(session.edits.size(), 2u);
  EXPECT_EQ(session.edits[0].plan->task, Task::kTensor);
  EXPECT_EQ(session.edits[0].fault, "");
  EXPECT_EQ(session.edits[1].plan, nullptr);
  EXPECT_EQ(session.edits[1].config_json, "");
  EXPECT_EQ(session.edits[1].fault, report.fault);
  EXPECT_EQ(FaultLine("p", "a\nb"),
            "rankprobe: p cannot be used; dumping is off until it is corrected "
            "or an operator switches it on: a; b\n");
}

}  // namespace
}  // namespace rankprobe
