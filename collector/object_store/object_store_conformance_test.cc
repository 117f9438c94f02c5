// SPDX-License-Identifier: Apache-2.0
// The guarantees of ObjectStore, for each implementation: always for a
// directory, and for the bucket that RANKPROBE_TEST_S3_URL names if it is set
// (tests/stages/scale.sh starts a Ceph for it).
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "collector/object_store/directory_object_store.h"
#include "collector/object_store/object_store.h"
#include "collector/object_store/open_object_store.h"
#include "collector/object_store/store_probe.h"
#include "collector/object_store/testing/put_modes.h"
#include "common/base/random_bytes.h"
#include "common/testing/scratch_directory.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::kIfAbsent;
using testing::kReplace;

std::vector<std::string> Kinds() {
  std::vector<std::string> kinds = {"directory"};
  if (std::getenv("RANKPROBE_TEST_S3_URL") != nullptr) kinds.push_back("s3");
  return kinds;
}

class Conformance : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ObjectStoreOptions options;
    options.url = GetParam() == "s3"
                      ? std::string(std::getenv("RANKPROBE_TEST_S3_URL"))
                      : scratch_.path() + "/objects";
    options.make_directory = true;
    auto store = OpenObjectStore(options, ProcessEnvironment(),
                                 file_system_.get(), &clock_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    place_ = absl::StrCat("t", absl::BytesToHexString(RandomBytes(8)), "/");
  }
  void TearDown() override {
    if (store_ == nullptr) return;
    while (true) {
      const auto list = store_->List(place_, "", 1000);
      ASSERT_TRUE(list.ok()) << list.status();
      for (const ObjectInfo& object : list->objects)
        EXPECT_TRUE(store_->Delete(object.key).ok());
      if (!list->more) break;
    }
  }
  std::string Key(const std::string& name) const { return place_ + name; }
  std::vector<std::string> Keys(const ObjectList& list) const {
    std::vector<std::string> keys;
    for (const ObjectInfo& object : list.objects)
      keys.push_back(object.key.substr(place_.size()));
    return keys;
  }

  testing::ScratchDirectory scratch_;
  const std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  SystemClock clock_;
  std::unique_ptr<ObjectStore> store_;
  std::string place_;
};

TEST_P(Conformance, GivesBackWhatWasPut) {
  ASSERT_TRUE(store_->Put(Key("a/b"), "0123456789", kReplace).ok());
  EXPECT_EQ(*store_->Get(Key("a/b"), 0, 10), "0123456789");
  EXPECT_EQ(*store_->Get(Key("a/b"), 3, 4), "3456");
  EXPECT_EQ(*store_->Get(Key("a/b"), 9, 1), "9");
  const auto tail = store_->GetTail(Key("a/b"), 3);
  ASSERT_TRUE(tail.ok()) << tail.status();
  EXPECT_EQ(tail->bytes, "789");
  EXPECT_EQ(tail->object_bytes, 10u);
  EXPECT_EQ(store_->GetTail(Key("a/b"), 100)->bytes, "0123456789");
  EXPECT_EQ(*GetObject(store_.get(), Key("a/b"), 10), "0123456789");
  EXPECT_TRUE(
      absl::IsDataLoss(GetObject(store_.get(), Key("a/b"), 9).status()));
  ASSERT_TRUE(store_->Put(Key("a/b"), "other", kReplace).ok());
  EXPECT_EQ(*GetObject(store_.get(), Key("a/b"), 10), "other");
}

TEST_P(Conformance, KeepsEmptyAndBinaryObjects) {
  ASSERT_TRUE(store_->Put(Key("empty"), "", kReplace).ok());
  EXPECT_EQ(*GetObject(store_.get(), Key("empty"), 10), "");
  std::string bytes;
  for (int i = 0; i < 100000; ++i) bytes.push_back(static_cast<char>(i * 31));
  ASSERT_TRUE(store_->Put(Key("binary"), bytes, kReplace).ok());
  EXPECT_TRUE(*GetObject(store_.get(), Key("binary"), 1 << 20) == bytes);
}

TEST_P(Conformance, SaysWhatIsNotThere) {
  EXPECT_TRUE(absl::IsNotFound(store_->Get(Key("none"), 0, 1).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->GetTail(Key("none"), 1).status()));
  ASSERT_TRUE(store_->Put(Key("short"), "abc", kReplace).ok());
  EXPECT_TRUE(absl::IsOutOfRange(store_->Get(Key("short"), 0, 4).status()));
  EXPECT_TRUE(absl::IsOutOfRange(store_->Get(Key("short"), 3, 1).status()));
  EXPECT_TRUE(
      absl::IsOutOfRange(store_->Get(Key("short"), 1, UINT64_MAX).status()));
  EXPECT_TRUE(store_->List(Key("nothing/"), "", 10)->objects.empty());
}

TEST_P(Conformance, CreatesOnlyWhatIsAbsent) {
  ASSERT_TRUE(store_->Put(Key("once"), "first", kIfAbsent).ok());
  EXPECT_TRUE(
      absl::IsAlreadyExists(store_->Put(Key("once"), "second", kIfAbsent)));
  EXPECT_EQ(*GetObject(store_.get(), Key("once"), 10), "first");
  ASSERT_TRUE(store_->Delete(Key("once")).ok());
  EXPECT_TRUE(store_->Put(Key("once"), "third", kIfAbsent).ok());
}

TEST_P(Conformance, HasOneWinnerOfManyRacers) {
  for (int round = 0; round < 8; ++round) {
    const std::string key = Key(absl::StrCat("race/", round));
    std::vector<absl::Status> results(8);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < results.size(); ++i) {
      threads.emplace_back([&, i] {
        results[i] = store_->Put(key,
                                 std::string(round % 2 == 0 ? 8 : 1 << 20,
                                             static_cast<char>('a' + i)),
                                 kIfAbsent);
      });
    }
    for (std::thread& thread : threads) thread.join();
    int winners = 0;
    char winner = 0;
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].ok()) {
        ++winners;
        winner = static_cast<char>('a' + i);
      } else {
        EXPECT_TRUE(absl::IsAlreadyExists(results[i])) << results[i];
      }
    }
    EXPECT_EQ(winners, 1) << key;
    EXPECT_EQ(store_->Get(key, 0, 1).value(), std::string(1, winner));
  }
}

TEST_P(Conformance, ListsInOrderAndInPages) {
  const std::vector<std::string> in_order = {
      "a", "a-b", "a.b", "a/b", "a/b-c", "a/b0", "a0", "b/c/d", "b/c0", "c"};
  // "a" and "a/b" cannot both be files.
  std::vector<std::string> put;
  for (const std::string& name : in_order) {
    if (name == "a") continue;
    put.push_back(name);
    ASSERT_TRUE(store_->Put(Key(name), name, kReplace).ok()) << name;
  }
  const auto all = store_->List(place_, "", 1000);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(Keys(*all), put);
  EXPECT_FALSE(all->more);
  EXPECT_EQ(all->objects[0].bytes, 3u);
  for (size_t page = 1; page <= 4; ++page) {
    std::vector<std::string> paged;
    std::string after;
    while (true) {
      const auto some = store_->List(place_, after, page);
      ASSERT_TRUE(some.ok()) << some.status();
      ASSERT_LE(some->objects.size(), page);
      for (const std::string& key : Keys(*some)) paged.push_back(key);
      if (!some->more) break;
      after = some->objects.back().key;
    }
    EXPECT_EQ(paged, put) << page;
  }
  EXPECT_EQ(Keys(*store_->List(Key("a/b"), "", 10)),
            (std::vector<std::string>{"a/b", "a/b-c", "a/b0"}));
  EXPECT_EQ(Keys(*store_->List(Key("b/"), Key("b/c/d"), 10)),
            std::vector<std::string>{"b/c0"});
}

TEST_P(Conformance, DeletesOnceAndAgain) {
  ASSERT_TRUE(store_->Put(Key("gone"), "x", kReplace).ok());
  EXPECT_TRUE(store_->Delete(Key("gone")).ok());
  EXPECT_TRUE(absl::IsNotFound(store_->Get(Key("gone"), 0, 1).status()));
  EXPECT_TRUE(store_->Delete(Key("gone")).ok());
}

TEST_P(Conformance, TakesFilesInParts) {
  // Three parts of 8 MiB, the last one shorter.
  std::string bytes((17 << 20) + 5, '\0');
  uint64_t state = 1;
  for (char& c : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    c = static_cast<char>(state >> 56);
  }
  const std::string path = scratch_.path() + "/file";
  {
    auto file =
        file_system_->OpenForWrite(path, FileSystem::OpenMode::kCreateNew);
    ASSERT_TRUE(file.ok() && (*file)->Append(bytes).ok());
  }
  ASSERT_TRUE(store_->PutFile(Key("file"), file_system_.get(), path).ok());
  EXPECT_TRUE(*GetObject(store_.get(), Key("file"), 32 << 20) == bytes);
  EXPECT_EQ(*store_->Get(Key("file"), (8 << 20) - 2, 4),
            bytes.substr((8 << 20) - 2, 4));
  EXPECT_TRUE(absl::IsNotFound(store_->PutFile(Key("file"), file_system_.get(),
                                               scratch_.path() + "/no file")));
}

TEST_P(Conformance, RefusesWhatIsNoKey) {
  for (const char* const key :
       {"", "/a", "a/", "a//b", "..", "a/../b", ".a", "a b", "a\nb", "a=b"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(store_->Put(key, "x", kReplace)))
        << key;
    EXPECT_TRUE(absl::IsInvalidArgument(store_->Get(key, 0, 1).status()));
    EXPECT_TRUE(absl::IsInvalidArgument(store_->Delete(key)));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(store_->List("../", "", 1).status()));
}

TEST_P(Conformance, PassesTheProbe) {
  EXPECT_EQ(ProbeObjectStore(store_.get(), ProbeOptions()), absl::OkStatus());
  EXPECT_TRUE(store_->List("probe/", "", 10)->objects.empty());
}

INSTANTIATE_TEST_SUITE_P(Stores, Conformance, ::testing::ValuesIn(Kinds()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace rankprobe
