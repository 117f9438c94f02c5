// SPDX-License-Identifier: Apache-2.0
// State after a crash, on a file system that forgets what was not synced.
#include "collector/object_store/directory_object_store.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/object_store/open_object_store.h"
#include "collector/object_store/testing/put_modes.h"
#include "common/testing/fault_file_system.h"
#include "common/testing/scratch_directory.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

namespace fs = std::filesystem;

using testing::FaultFileSystem;
using testing::FaultKind;

using testing::kIfAbsent;
using testing::kReplace;

TEST(DirectoryObjectStore, WhatWasPutSurvivesTheMachine) {
  FaultFileSystem files;
  ASSERT_TRUE(files.CreateDirectories("/d").ok());
  ASSERT_TRUE(files.SyncDirectory("/").ok());
  {
    DirectoryObjectStore store(&files, "/d/objects");
    ASSERT_TRUE(store.Put("a/b/c", "bytes", kIfAbsent).ok());
    ASSERT_TRUE(store.Put("a/b/d", "others", kReplace).ok());
  }
  files.CrashAndRestart();
  DirectoryObjectStore store(&files, "/d/objects");
  EXPECT_EQ(*GetObject(&store, "a/b/c", 100), "bytes");
  EXPECT_EQ(*GetObject(&store, "a/b/d", 100), "others");
  EXPECT_EQ(store.List("", "", 10)->objects.size(), 2u);
}

// At each call to the disk: an acknowledged object is complete, another one is
// complete or absent, and earlier objects stay.
TEST(DirectoryObjectStore, IsWholeOrAbsentAfterACrashAtEachCall) {
  for (const auto mode : {kReplace, kIfAbsent}) {
    for (const auto fault : {FaultKind::kCrash, FaultKind::kIoError,
                             FaultKind::kNoSpace, FaultKind::kShortWrite}) {
      bool reached = true;
      for (uint64_t call = 1; reached; ++call) {
        ASSERT_LT(call, 100u);
        FaultFileSystem files;
        ASSERT_TRUE(files.CreateDirectories("/d").ok());
        ASSERT_TRUE(files.SyncDirectory("/").ok());
        absl::Status put;
        {
          DirectoryObjectStore store(&files, "/d");
          ASSERT_TRUE(store.Put("k/old", "old bytes", kReplace).ok());
          files.FailCall(files.calls() + call, fault);
          put = store.Put("k/new", "new bytes", mode);
          reached = !files.faulty_call().empty();
        }
        files.CrashAndRestart(FaultFileSystem::Unsynced::kHalfKept);
        DirectoryObjectStore store(&files, "/d");
        EXPECT_EQ(*GetObject(&store, "k/old", 100), "old bytes");
        const auto there = GetObject(&store, "k/new", 100);
        if (put.ok()) {
          EXPECT_TRUE(there.ok()) << call << " " << files.faulty_call();
        }
        if (there.ok()) {
          EXPECT_EQ(*there, "new bytes") << call << " " << files.faulty_call();
        } else {
          EXPECT_TRUE(absl::IsNotFound(there.status())) << there.status();
        }
        const auto listed = store.List("", "", 10);
        for (const ObjectInfo& object : listed->objects)
          EXPECT_TRUE(object.key == "k/old" || object.key == "k/new");
      }
    }
  }
}

// A caller that gets ALREADY_EXISTS may rely on the object, even if its writer
// died before the sync.
TEST(DirectoryObjectStore, WhoLosesARaceSyncsTheWinner) {
  FaultFileSystem files;
  ASSERT_TRUE(files.CreateDirectories("/d").ok());
  ASSERT_TRUE(files.SyncDirectory("/").ok());
  DirectoryObjectStore store(&files, "/d");
  ASSERT_TRUE(store.Put("k/other", "x", kReplace).ok());
  uint64_t links = 0;
  files.FailWhile([&](const std::string& op, const std::string& path) {
    if (op == "Link") ++links;
    return links > 0 && op == "fsync" && path == "/d/k" ? FaultKind::kIoError
                                                        : FaultKind::kNone;
  });
  EXPECT_FALSE(store.Put("k/raced", "winner", kIfAbsent).ok());
  files.FailWhile(nullptr);
  EXPECT_TRUE(absl::IsAlreadyExists(store.Put("k/raced", "loser", kIfAbsent)));
  files.CrashAndRestart();
  DirectoryObjectStore after(&files, "/d");
  EXPECT_EQ(*GetObject(&after, "k/raced", 100), "winner");
}

class Links : public ::testing::Test {
 protected:
  void SetUp() override {
    ObjectStoreOptions options;
    options.url = scratch_.path() + "/objects";
    options.make_directory = true;
    auto store = OpenObjectStore(options, ProcessEnvironment(),
                                 file_system_.get(), &clock_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    ASSERT_TRUE(store_->Put("a/mine", "mine", kReplace).ok());
    fs::create_directories(scratch_.path() + "/others/deep");
    std::ofstream(Other("note")) << "theirs";
    std::ofstream(Other("deep/thesis")) << "theirs";
  }
  std::string Other(const std::string& name) const {
    return scratch_.path() + "/others/" + name;
  }
  void Plant(const std::string& to, const std::string& key) {
    fs::create_symlink(to, scratch_.path() + "/objects/" + key);
  }
  std::vector<std::string> Keys(const std::string& prefix) {
    std::vector<std::string> keys;
    const auto list = store_->List(prefix, "", 100);
    if (!list.ok()) return {list.status().ToString()};
    for (const ObjectInfo& object : list->objects)
      keys.push_back(absl::StrCat(object.key, " ", object.bytes));
    return keys;
  }
  void ExpectAllOfTheOthers() {
    EXPECT_EQ(fs::file_size(Other("note")), 6u);
    EXPECT_EQ(fs::file_size(Other("deep/thesis")), 6u);
    EXPECT_EQ(std::distance(
                  fs::recursive_directory_iterator(scratch_.path() + "/others"),
                  fs::recursive_directory_iterator()),
              3);
  }

  testing::ScratchDirectory scratch_;
  const std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  SystemClock clock_;
  std::unique_ptr<ObjectStore> store_;
};

TEST_F(Links, NothingBehindThemIsListedReadWrittenOrDeleted) {
  Plant(scratch_.path() + "/others", "a/directory");
  Plant(Other("note"), "a/file");
  Plant("/nowhere", "a/nothing");
  EXPECT_EQ(Keys("a/"), (std::vector<std::string>{"a/directory 0", "a/file 0",
                                                  "a/mine 4", "a/nothing 0"}));
  EXPECT_TRUE(
      absl::IsPermissionDenied(store_->List("a/directory/", "", 10).status()));
  for (const char* key : {"a/directory/note", "a/file", "a/nothing"}) {
    EXPECT_TRUE(absl::IsPermissionDenied(store_->Get(key, 0, 1).status()));
    EXPECT_TRUE(absl::IsPermissionDenied(store_->GetTail(key, 1).status()));
  }
  for (const auto mode : {kReplace, kIfAbsent}) {
    EXPECT_TRUE(absl::IsPermissionDenied(
        store_->Put("a/directory/new", "bytes", mode)));
    EXPECT_TRUE(absl::IsPermissionDenied(
        store_->Put("a/directory/deep/new", "bytes", mode)));
  }
  EXPECT_TRUE(absl::IsPermissionDenied(
      store_->PutFile("a/directory/new", file_system_.get(), Other("note"))));
  EXPECT_TRUE(absl::IsPermissionDenied(store_->Delete("a/directory/note")));
  // A Delete or Put with the link's own key removes or replaces only the name.
  EXPECT_TRUE(store_->Delete("a/file").ok());
  EXPECT_TRUE(store_->Put("a/directory", "bytes", kReplace).ok());
  EXPECT_EQ(Keys("a/"), (std::vector<std::string>{"a/directory 5", "a/mine 4",
                                                  "a/nothing 0"}));
  ExpectAllOfTheOthers();
}

TEST_F(Links, UploadsDoNotGoThroughOne) {
  fs::remove_all(scratch_.path() + "/objects/.uploads");
  Plant(scratch_.path() + "/others", ".uploads");
  EXPECT_TRUE(absl::IsPermissionDenied(store_->Put("a/b", "bytes", kReplace)));
  ExpectAllOfTheOthers();
}

TEST_F(Links, AFifoHidesNothing) {
  ASSERT_EQ(::mkfifo((scratch_.path() + "/objects/a/fifo").c_str(), 0600), 0);
  EXPECT_EQ(Keys(""), (std::vector<std::string>{"a/fifo 0", "a/mine 4"}));
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Get("a/fifo", 0, 1).status()));
}

// The name of the directory itself may be a link, because the administrator
// chose it.
TEST_F(Links, TheNameOfTheDirectoryMayBeOne) {
  fs::create_symlink(scratch_.path() + "/objects", scratch_.path() + "/name");
  ObjectStoreOptions options;
  options.url = scratch_.path() + "/name";
  const auto store = OpenObjectStore(options, ProcessEnvironment(),
                                     file_system_.get(), &clock_);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(*GetObject(store->get(), "a/mine", 10), "mine");
}

TEST(DirectoryObjectStore, OneThatIsNotThereIsNoEmptyOne) {
  testing::ScratchDirectory scratch;
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  SystemClock clock;
  ObjectStoreOptions options;
  options.url = scratch.path() + "/deep/typo/";
  const auto open = [&] {
    return OpenObjectStore(options, ProcessEnvironment(), files.get(), &clock)
        .status();
  };
  EXPECT_TRUE(absl::IsNotFound(open())) << open();
  EXPECT_FALSE(fs::exists(scratch.path() + "/deep"));
  std::ofstream(scratch.path() + "/deep") << "a file";
  EXPECT_FALSE(open().ok());
  fs::remove(scratch.path() + "/deep");
  options.make_directory = true;
  EXPECT_TRUE(open().ok()) << open();
  options.make_directory = false;
  EXPECT_TRUE(open().ok()) << open();
}

}  // namespace
}  // namespace rankprobe
