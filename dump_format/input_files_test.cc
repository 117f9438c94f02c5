// SPDX-License-Identifier: Apache-2.0
#include "dump_format/input_files.h"

#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "dump_format/dump_layout.h"
#include "dump_format/testing/testing_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

class InputFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::umask(0022);
    dump_ = dir_.path() + "/dump";
    file_ = dir_.Write("dump/step0/rank0/dump.json", "{}");
  }
  absl::Status Read(const std::string& path, bool force = false) {
    const auto files = NewInputFiles({force, [this](const std::string& text) {
                                        warnings_.push_back(text);
                                      }});
    absl::Status status = ReadInput(files.get(), path).status();
    return status;
  }
  absl::Status Find(bool force = false) {
    const auto files = NewInputFiles({force, [this](const std::string& text) {
                                        warnings_.push_back(text);
                                      }});
    return FindDumps(files.get(), dump_).status();
  }

  testing::TempDir dir_;
  std::string dump_, file_;
  std::vector<std::string> warnings_;
};

TEST_F(InputFilesTest, WhatOnlyTheOwnerCanChangeIsRead) {
  for (const mode_t mode : {0400, 0600, 0640, 0644, 0755}) {
    ASSERT_EQ(chmod(file_.c_str(), mode), 0);
    EXPECT_TRUE(Read(file_).ok());
  }
  EXPECT_TRUE(Find().ok());
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(InputFilesTest, WhatOthersCanChangeIsRefused) {
  for (const mode_t mode : {0660, 0646, 0666}) {
    ASSERT_EQ(chmod(file_.c_str(), mode), 0);
    const absl::Status status = Read(file_);
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(file_));
    EXPECT_THAT(std::string(status.message()), HasSubstr("--force"));
  }
  EXPECT_TRUE(Read(file_, /*force=*/true).ok());
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_THAT(warnings_[0], HasSubstr(file_));
  EXPECT_THAT(warnings_[0], HasSubstr("0666"));
  ASSERT_EQ(chmod(file_.c_str(), 0644), 0);
  // A user who can change a directory can replace the files in it.
  for (const std::string& directory :
       {dump_, dump_ + "/step0", dump_ + "/step0/rank0"}) {
    ASSERT_EQ(chmod(directory.c_str(), 0777), 0);
    if (directory == dump_ + "/step0/rank0") {
      EXPECT_TRUE(absl::IsPermissionDenied(Read(file_)));
    } else {
      EXPECT_TRUE(absl::IsPermissionDenied(Find())) << directory;
    }
    warnings_.clear();
    EXPECT_TRUE(Find(/*force=*/true).ok());
    // Like /tmp: only owners can replace their files there.
    ASSERT_EQ(chmod(directory.c_str(), 01777), 0);
    EXPECT_TRUE(Find().ok());
    EXPECT_TRUE(Read(file_).ok());
    ASSERT_EQ(chmod(directory.c_str(), 0750), 0);
  }
}

TEST_F(InputFilesTest, LinksAreRefused) {
  const std::string link = dir_.path() + "/link.json";
  std::filesystem::create_symlink(file_, link);
  EXPECT_TRUE(absl::IsPermissionDenied(Read(link)));
  EXPECT_TRUE(Read(link, /*force=*/true).ok());
  std::filesystem::rename(dump_ + "/step0", dir_.path() + "/elsewhere");
  std::filesystem::create_directory_symlink(dir_.path() + "/elsewhere",
                                            dump_ + "/step0");
  const absl::Status status = Find();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("symbolic link"));
  EXPECT_TRUE(Find(/*force=*/true).ok());
}

// X02, X04: at once, also with --force.
TEST_F(InputFilesTest, OnlyRegularFilesAreRead) {
  const std::string fifo = dir_.path() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const bool force : {false, true}) {
    EXPECT_FALSE(Read(fifo, force).ok());
    EXPECT_FALSE(Read("/dev/zero", force).ok());
    EXPECT_FALSE(Read(dir_.path(), force).ok());
  }
}

// A.4: rank0 and proc123 are two processes.
TEST_F(InputFilesTest, RanksAndProcessesOfOneStep) {
  for (const char* name : {"rank2", "proc7", "proc123"})
    dir_.Write(absl::StrCat("dump/step0/", name, "/dump.json"), "{}");
  for (const char* name : {"rank0", "rank2", "proc5", "proc900"})
    dir_.Write(absl::StrCat("golden/step0/", name, "/dump.json"), "{}");
  const auto files = NewInputFiles({});
  const auto target = FindDumps(files.get(), dump_);
  const auto reference = FindDumps(files.get(), dir_.path() + "/golden");
  ASSERT_TRUE(target.ok() && reference.ok()) << target.status();
  std::string names;
  for (const DumpPlace& place : target->places) names += place.Name() + " ";
  EXPECT_EQ(names, "rank0 rank2 proc7 proc123 ");
  std::vector<std::string> unpaired;
  const auto pairs = PairDumps(*target, *reference, &unpaired);
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  names.clear();
  for (const auto& [a, b] : *pairs) names += a.Name() + "=" + b.Name() + " ";
  EXPECT_EQ(names, "rank0=rank0 rank2=rank2 proc7=proc5 proc123=proc900 ");
  EXPECT_TRUE(unpaired.empty());
  // A pid that is a rank's number too.
  dir_.Write("dump/step0/rank7/dump.json", "{}");
  const auto again = FindDumps(files.get(), dump_);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->Ranks(), (std::vector<int64_t>{0, 2, 7, 8, 123}));
}

}  // namespace
}  // namespace rankprobe
