// SPDX-License-Identifier: Apache-2.0
#include "common/io/file_system.h"

#include <fcntl.h>

#include <string>

#include "common/io/posix_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FileSystemTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "fsXXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { EXPECT_TRUE(fs_->DeleteTree(root_).ok()); }

  std::unique_ptr<FileSystem> fs_ = NewPosixFileSystem();
  std::string root_;
};

TEST_F(FileSystemTest, AppendsManyPiecesAndReadsBack) {
  auto file = fs_->OpenForWrite(root_ + "/a", FileSystem::OpenMode::kCreateNew);
  ASSERT_TRUE(file.ok());
  std::vector<absl::string_view> pieces;
  std::string expected;
  for (int i = 0; i < 200; ++i) {
    pieces.push_back(i % 3 == 0 ? "" : "abc");
    expected.append(pieces.back().data(), pieces.back().size());
  }
  ASSERT_TRUE((*file)->Append(pieces).ok());
  ASSERT_TRUE((*file)->Sync().ok());
  ASSERT_TRUE((*file)->Close().ok());
  EXPECT_EQ(*fs_->FileSize(root_ + "/a"), expected.size());
  auto reader = fs_->OpenForRead(root_ + "/a");
  std::string out(expected.size(), '\0');
  ASSERT_TRUE((*reader)->Read(0, absl::MakeSpan(out)).ok());
  EXPECT_EQ(out, expected);
  EXPECT_EQ((*reader)->Read(1, absl::MakeSpan(out)).code(),
            absl::StatusCode::kOutOfRange);
}

TEST_F(FileSystemTest, ErrorsNameThePath) {
  EXPECT_EQ(fs_->OpenForRead(root_ + "/none").status().code(),
            absl::StatusCode::kNotFound);
  ASSERT_TRUE(
      fs_->OpenForWrite(root_ + "/f", FileSystem::OpenMode::kCreateNew).ok());
  const auto again =
      fs_->OpenForWrite(root_ + "/f", FileSystem::OpenMode::kCreateNew);
  EXPECT_EQ(again.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(again.status().message()), HasSubstr(root_ + "/f"));
  EXPECT_EQ(fs_->CreateDirectories(root_ + "/f").code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(FileSystemTest, LockNamesItsHolder) {
  auto lock = fs_->Lock(root_ + "/LOCK");
  ASSERT_TRUE(lock.ok());
  const auto second = fs_->Lock(root_ + "/LOCK");
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(std::to_string(getpid())));
  lock->reset();
  EXPECT_TRUE(fs_->Lock(root_ + "/LOCK").ok());
}

// A process that had nothing to store there has deleted the file between
// another one's open and lock. A lock on a file without a name would not
// exclude other processes.
TEST_F(FileSystemTest, ALockThatWasDeletedMeanwhileIsNone) {
  const std::string path = root_ + "/LOCK";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640);
  ASSERT_GE(fd, 0);
  ASSERT_TRUE(fs_->Lock(path).ok());
  ASSERT_TRUE(fs_->Delete(path).ok());
  const auto lock = posix::LockFile(fd, path);
  EXPECT_TRUE(absl::IsAborted(lock.status())) << lock.status();
  EXPECT_FALSE(fs_->Exists(path));
  const auto anew = fs_->Lock(path);
  ASSERT_TRUE(anew.ok());
  EXPECT_TRUE(fs_->Exists(path));
}

TEST_F(FileSystemTest, ListsSortedAndDeletesTrees) {
  ASSERT_TRUE(fs_->CreateDirectories(root_ + "/x/b").ok());
  ASSERT_TRUE(fs_->CreateDirectories(root_ + "/x/a").ok());
  EXPECT_THAT(*fs_->List(root_ + "/x"), ElementsAre("a", "b"));
  ASSERT_TRUE(fs_->DeleteTree(root_ + "/x").ok());
  EXPECT_FALSE(fs_->Exists(root_ + "/x"));
}

}  // namespace
}  // namespace rankprobe
