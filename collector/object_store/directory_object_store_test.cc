// SPDX-License-Identifier: Apache-2.0
// What a crash leaves, on a file system that forgets what was not synced.
#include "collector/object_store/directory_object_store.h"

#include <string>

#include "collector/object_store/testing/put_modes.h"
#include "common/testing/fault_file_system.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

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

// At each call to the disk: an object that is acked is whole, one that is not is
// whole or absent, and what was there before stays.
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

// Who is told that an object is there may rely on it, also when the one that made
// it died before its sync.
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

}  // namespace
}  // namespace rankprobe
