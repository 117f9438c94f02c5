// SPDX-License-Identifier: Apache-2.0
#include "common/io/staged_tree.h"

#include <xxhash.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/testing/fault_file_system.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Leftovers = StagedTree::Leftovers;

constexpr char kA[] = "step0/rank0/dump_tensor_data/a.pt";
constexpr char kB[] = "step0/rank0/dump_tensor_data/b.pt";

class StagedTreeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "treeXXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
  }
  void TearDown() override { EXPECT_TRUE(fs_->DeleteTree(root_).ok()); }

  std::unique_ptr<StagedTree> Open(Leftovers leftovers) {
    auto tree = StagedTree::Open(fs_.get(), root_, leftovers);
    EXPECT_TRUE(tree.ok()) << tree.status();
    return *std::move(tree);
  }
  void Write(const std::string& path, const std::string& text) {
    ASSERT_TRUE(fs_->CreateDirectories(path.substr(0, path.rfind('/'))).ok());
    auto file = fs_->OpenForWrite(path, FileSystem::OpenMode::kTruncate);
    ASSERT_TRUE(file.ok() && (*file)->Append(text).ok());
    ASSERT_TRUE((*file)->Close().ok());
  }
  std::string Read(const std::string& path) {
    const auto size = fs_->FileSize(path);
    if (!size.ok()) return std::string(size.status().message());
    std::string text(*size, '\0');
    EXPECT_TRUE((*fs_->OpenForRead(path))->Read(0, absl::MakeSpan(text)).ok());
    return text;
  }

  const std::unique_ptr<FileSystem> fs_ = NewPosixFileSystem();
  std::string root_;
};

TEST_F(StagedTreeTest, PublishReplacesRanksAndLeavesTheRest) {
  {
    const auto first = Open(Leftovers::kDelete);
    Write(first->PathOf("step0/rank0/old.json"), "old");
    ASSERT_TRUE(first->Publish().ok());
  }
  Write(root_ + "/step0/rank1/dump.json", "other rank");
  Write(root_ + "/notes.txt", "mine");
  const auto tree = Open(Leftovers::kDelete);
  Write(tree->PathOf(kA), "a");
  Write(tree->PathOf("manifest.json"), "{}");
  EXPECT_THAT(*fs_->List(root_ + "/step0/rank0"), ElementsAre("old.json"));
  ASSERT_TRUE(tree->Publish().ok());
  EXPECT_THAT(*fs_->List(root_),
              ElementsAre("manifest.json", "notes.txt", "step0"));
  EXPECT_THAT(*fs_->List(root_ + "/step0/rank0"),
              ElementsAre("dump_tensor_data"));
  EXPECT_EQ(Read(root_ + "/step0/rank1/dump.json"), "other rank");
}

std::string ManifestOf(const std::string& rank) {
  return "{\n \"format\": \"rankprobe-manifest-1\",\n \"files\": [\n  {\n"
         "   \"path\": \"" +
         rank + "/dump.json\"\n  }\n ]\n}";
}

// E11: bob's dump, which was not made by an export.
TEST_F(StagedTreeTest, WhatIsNotOursIsNotReplaced) {
  Write(root_ + "/step0/rank0/bob.json", "bob");
  Write(root_ + "/step1/rank0/alice.json", "alice");
  {
    const auto tree = Open(Leftovers::kDelete);
    const absl::Status refused = tree->MakeDirectory("step0/rank0");
    EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(root_ + "/step0/rank0"));
    EXPECT_TRUE(tree->MakeDirectory("step0/rank1").ok());
    // The second place is refused, so the first one is not filled either.
    Write(tree->PathOf("step0/rank1/dump.json"), "new");
    Write(tree->PathOf("step1/rank0/dump.json"), "new");
    EXPECT_TRUE(absl::IsAlreadyExists(tree->Publish()));
  }
  EXPECT_THAT(*fs_->List(root_), ElementsAre("step0", "step1"));
  EXPECT_THAT(*fs_->List(root_ + "/step0"), ElementsAre("rank0"));
  EXPECT_EQ(Read(root_ + "/step0/rank0/bob.json"), "bob");
  EXPECT_EQ(Read(root_ + "/step1/rank0/alice.json"), "alice");
  // A manifest.json of another program.
  Write(root_ + "/manifest.json", "{\"name\": \"app\"}");
  const auto tree = Open(Leftovers::kDelete);
  Write(tree->PathOf("step7/rank0/dump.json"), "new");
  Write(tree->PathOf("manifest.json"), ManifestOf("step7/rank0"));
  EXPECT_TRUE(absl::IsAlreadyExists(tree->Publish()));
  EXPECT_THAT(Read(root_ + "/manifest.json"), HasSubstr("app"));
  EXPECT_FALSE(fs_->Exists(root_ + "/step7"));
}

// Each manifest describes only the last export; all of them made the tree.
TEST_F(StagedTreeTest, WhatAnyExportMadeIsReplaced) {
  for (const std::string rank :
       {"step0/rank0", "step1/rank0", "step0/rank0", "step1/rank0"}) {
    const auto tree = Open(Leftovers::kDelete);
    ASSERT_TRUE(tree->MakeDirectory(rank).ok());
    Write(tree->PathOf(rank + "/dump.json"), "new");
    Write(tree->PathOf("manifest.json"), ManifestOf(rank));
    const absl::Status published = tree->Publish();
    ASSERT_TRUE(published.ok()) << published;
  }
  EXPECT_EQ(Read(root_ + "/.rankprobe-published"), "step0/rank0\n");
  // An export of both needs no list in addition to the manifest.
  const auto tree = Open(Leftovers::kDelete);
  for (const std::string rank : {"step0/rank0", "step1/rank0"})
    Write(tree->PathOf(rank + "/dump.json"), "new");
  Write(tree->PathOf("manifest.json"),
        ManifestOf("step0/rank0") + ManifestOf("step1/rank0"));
  ASSERT_TRUE(tree->Publish().ok());
  EXPECT_THAT(*fs_->List(root_),
              ElementsAre("manifest.json", "step0", "step1"));
}

// E10: a staging directory is emptied, so it must be the export's own.
TEST_F(StagedTreeTest, SomebodysDirectoryIsNoStagingDirectory) {
  Write(root_ + "/alice/new/thesis", "new");
  Write(root_ + "/alice/kept/thesis", "kept");
  for (const std::string& staging : {root_ + "/alice", std::string()}) {
    if (staging.empty())
      Write(root_ + "/.rankprobe-export/new/thesis", "by hand");
    const auto tree =
        StagedTree::Open(fs_.get(), root_, Leftovers::kDelete, staging);
    EXPECT_EQ(tree.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(tree.status().message()),
                HasSubstr("that no export made"));
  }
  EXPECT_EQ(Read(root_ + "/alice/new/thesis"), "new");
  EXPECT_EQ(Read(root_ + "/alice/kept/thesis"), "kept");
  EXPECT_EQ(Read(root_ + "/.rankprobe-export/new/thesis"), "by hand");
}

std::string ManifestOfRun(const std::string& run, const std::string& rank) {
  return "{\n \"format\": \"rankprobe-manifest-1\",\n \"run\": \"" + run +
         "\",\n \"files\": [\n  {\n   \"path\": \"" + rank +
         "/dump.json\"\n  }\n ]\n}";
}

// A second job into one dump_path, and a restart: the run may be the same.
TEST_F(StagedTreeTest, WhatAnEarlierJobLeftMakesWay) {
  const auto publish = [this](const std::string& job, const std::string& rank) {
    auto tree = StagedTree::Open(fs_.get(), root_, Leftovers::kDelete,
                                 root_ + "/.private/" + job);
    ASSERT_TRUE(tree.ok()) << tree.status();
    ASSERT_TRUE((*tree)->MakeDirectory(rank).ok());
    Write((*tree)->PathOf(rank + "/dump.json"), job);
    ASSERT_TRUE((*tree)->Publish("a/b").ok());
  };
  publish("first", "step0/rank0");
  publish("first", "step1/rank0");
  publish("first", "step0/rank0");  // it has grown
  EXPECT_FALSE(fs_->Exists(root_ + "/earlier"));
  for (const std::string job : {"second", "third"}) {
    Write(root_ + "/manifest.json", ManifestOfRun("a/b", "step0/rank0"));
    publish(job, "step0/rank0");
    publish(job, "step0/rank0");
    EXPECT_EQ(Read(root_ + "/step0/rank0/dump.json"), job);
  }
  EXPECT_EQ(Read(root_ + "/earlier/a_b/step0/rank0/dump.json"), "first");
  EXPECT_EQ(Read(root_ + "/earlier/a_b.2/step0/rank0/dump.json"), "second");
  EXPECT_EQ(Read(root_ + "/step1/rank0/dump.json"), "first");
  // Files of an earlier run do not affect those in place.
  Write(root_ + "/manifest.json",
        "{\n \"format\": \"rankprobe-manifest-1\",\n \"run\": \"c\", "
        "\"earlier_runs\""
        ": [{\"run\": \"x\", \"directory\": \"earlier/x\", \"files\": "
        "[{\"path\": \""
        "step2/rank0/dump.json\"}]}]}");
  Write(root_ + "/step2/rank0/dump.json", "by hand");
  auto tree = StagedTree::Open(fs_.get(), root_, Leftovers::kDelete,
                               root_ + "/.private/fourth");
  EXPECT_TRUE(absl::IsAlreadyExists((*tree)->MakeDirectory("step2/rank0")));
}

TEST_F(StagedTreeTest, AnExportOfAnotherRunMovesWhatIsThereAside) {
  for (const std::string run : {"a", "b", "b", ".."}) {
    const auto tree = Open(Leftovers::kDelete);
    Write(tree->PathOf("step0/rank0/dump.json"), run);
    Write(tree->PathOf("manifest.json"), ManifestOfRun(run, "step0/rank0"));
    ASSERT_TRUE(tree->Publish(run).ok());
    EXPECT_EQ(Read(root_ + "/step0/rank0/dump.json"), run);
    EXPECT_THAT(Read(root_ + "/manifest.json"), HasSubstr("\"" + run + "\""));
  }
  EXPECT_THAT(*fs_->List(root_ + "/earlier"), ElementsAre("a", "b"));
  EXPECT_EQ(Read(root_ + "/earlier/a/step0/rank0/dump.json"), "a");
  EXPECT_THAT(Read(root_ + "/earlier/a/manifest.json"), HasSubstr("\"a\""));
  EXPECT_EQ(Read(root_ + "/earlier/b/step0/rank0/dump.json"), "b");
}

// Readers cannot separate processes of two runs in one step.
TEST_F(StagedTreeTest, ProcessesOfAnotherRunMakeWayForOneOfThis) {
  const auto publish = [this](const std::string& job, const std::string& run,
                              const std::string& place) {
    const auto tree = StagedTree::Open(fs_.get(), root_, Leftovers::kDelete,
                                       root_ + "/.private/" + job)
                          .value();
    Write(tree->PathOf(place + "/dump.json"), job);
    ASSERT_TRUE(tree->Publish(run).ok());
    Write(root_ + "/manifest.json", ManifestOfRun(run, place));
  };
  publish("one", "a", "step0/proc1");
  publish("other host", "a", "step0/proc2");
  EXPECT_THAT(*fs_->List(root_ + "/step0"), ElementsAre("proc1", "proc2"));
  publish("two", "b", "step0/proc3");
  EXPECT_THAT(*fs_->List(root_ + "/step0"), ElementsAre("proc1", "proc3"))
      << "that no manifest names is anybody's";
  EXPECT_THAT(*fs_->List(root_ + "/earlier/a/step0"), ElementsAre("proc2"));
}

TEST_F(StagedTreeTest, OneExportAtATime) {
  const auto first = Open(Leftovers::kDelete);
  Write(first->PathOf(kA), "a");
  const auto second = StagedTree::Open(fs_.get(), root_, Leftovers::kDelete);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("another export is writing to " + root_));
  EXPECT_EQ(Read(first->PathOf(kA)), "a") << "the first is not disturbed";
}

TEST_F(StagedTreeTest, AStagingDirectoryServesOneExportAfterAnother) {
  const std::string staging = root_ + "/.private/staging";
  const auto open = [&] {
    return StagedTree::Open(fs_.get(), root_, Leftovers::kDelete, staging)
        .value();
  };
  for (const std::string text : {"first", "second"}) {
    const auto tree = open();
    EXPECT_EQ(StagedTree::Open(fs_.get(), root_, Leftovers::kDelete, staging)
                  .status()
                  .code(),
              absl::StatusCode::kFailedPrecondition);
    Write(tree->PathOf("step0/rank0/dump.json"), text);
    Write(tree->PathOf("step1/rank0/" + text + ".json"), text);
    ASSERT_TRUE(tree->Publish().ok());
    EXPECT_EQ(Read(root_ + "/step0/rank0/dump.json"), text);
    EXPECT_THAT(*fs_->List(root_ + "/step1/rank0"),
                ElementsAre(text + ".json"));
    EXPECT_THAT(*fs_->List(root_), ElementsAre(".private", "step0", "step1"));
    EXPECT_TRUE(fs_->Exists(staging + "/published"));
  }
  // Files of a failed export are not published by the next one.
  Write(open()->PathOf("step2/rank0/dump.json"), "nothing");
  Write(staging + "/new/step3/rank0/dump.json", "of a killed process");
  ASSERT_TRUE(open()->Publish().ok());
  EXPECT_THAT(*fs_->List(root_), ElementsAre(".private", "step0", "step1"));
}

TEST_F(StagedTreeTest, NothingStaysUnlessKept) {
  Open(Leftovers::kDelete).reset();
  EXPECT_THAT(*fs_->List(root_), ElementsAre());
  StagedTree::Open(fs_.get(), root_ + "/made", Leftovers::kDelete)
      .value()
      .reset();
  EXPECT_THAT(*fs_->List(root_), ElementsAre());
}

// Killed between the two renames of rank0, after those of rank1.
TEST_F(StagedTreeTest, WhatAKilledExportHadMovedAwayIsPutBack) {
  const std::string inside = root_ + "/.rankprobe-export",
                    beside = root_ + "/.private/staging";
  {
    const auto tree = Open(Leftovers::kDelete);
    for (const std::string rank : {"step0/rank0", "step0/rank1"})
      Write(tree->PathOf(rank + "/dump.json"), "before");
    Write(tree->PathOf("manifest.json"),
          ManifestOf("step0/rank0") + ManifestOf("step0/rank1"));
    ASSERT_TRUE(tree->Publish().ok());
  }
  for (const std::string& staging : {inside, beside}) {
    Write(staging + "/.rankprobe-own", "");
    Write(staging + "/old/step0-rank1/dump.json", "before that");
    ASSERT_TRUE(
        fs_->Rename(root_ + "/step0/rank0", staging + "/old/step0-rank0").ok());
    const auto open = [&] {
      return StagedTree::Open(fs_.get(), root_, Leftovers::kDelete,
                              staging == inside ? "" : staging)
          .value();
    };
    open().reset();  // that comes to nothing
    EXPECT_EQ(Read(root_ + "/step0/rank0/dump.json"), "before");
    EXPECT_EQ(Read(root_ + "/step0/rank1/dump.json"), "before");
    EXPECT_FALSE(fs_->Exists(inside));
    // Files that were replaced are not in the way.
    Write(staging + "/.rankprobe-own", "");
    Write(staging + "/old/step0-rank1/dump.json", "before that");
    const auto tree = open();
    Write(tree->PathOf("step0/rank1/dump.json"), "before");
    Write(tree->PathOf("manifest.json"),
          ManifestOf("step0/rank0") + ManifestOf("step0/rank1"));
    const absl::Status published = tree->Publish();
    EXPECT_TRUE(published.ok()) << published;
  }
}

// Publishes step0/rank0 with the one file `name`.
absl::Status PublishFile(FileSystem* disk, const std::string& name) {
  auto tree = StagedTree::Open(disk, "/d", Leftovers::kDelete);
  if (!tree.ok()) return tree.status();
  const std::string directory = (*tree)->PathOf("step0/rank0");
  absl::Status status = disk->CreateDirectories(directory);
  if (!status.ok()) return status;
  status = disk->OpenForWrite(directory + "/" + name,
                              FileSystem::OpenMode::kTruncate)
               .status();
  if (!status.ok()) return status;
  return (*tree)->Publish();
}

TEST(StagedTreeFaultTest, ARankThatCannotBePlacedLeavesTheOneBefore) {
  for (const bool can_go_back : {true, false}) {
    testing::FaultFileSystem disk;
    const auto there = [&disk] { return *disk.List("/d/step0/rank0"); };
    for (const char* directory : {"/d", "/d/step0"})
      ASSERT_TRUE(disk.CreateDirectories(directory).ok());
    ASSERT_TRUE(PublishFile(&disk, "before").ok());
    int renames = 0;
    disk.FailWhile([&](const std::string& op, const std::string& path) {
      return op == "Rename" && path == "/d/step0/rank0" &&
                     (++renames == 1 || !can_go_back)
                 ? testing::FaultKind::kNoSpace
                 : testing::FaultKind::kNone;
    });
    EXPECT_TRUE(absl::IsResourceExhausted(PublishFile(&disk, "after")));
    disk.FailWhile(nullptr);
    if (can_go_back) EXPECT_THAT(there(), ElementsAre("before"));
    // An export that fails.
    ASSERT_TRUE(StagedTree::Open(&disk, "/d", Leftovers::kDelete).ok());
    EXPECT_THAT(there(), ElementsAre("before"));
    ASSERT_TRUE(PublishFile(&disk, "after").ok());
    EXPECT_THAT(there(), ElementsAre("after"));
  }
}

// If the process is killed during it, the next export still recognizes the
// rest.
TEST(StagedTreeFaultTest, TheClaimIsDeletedLast) {
  testing::FaultFileSystem disk;
  auto tree = StagedTree::Open(&disk, "/d", Leftovers::kDelete);
  ASSERT_TRUE(tree.ok()) << tree.status();
  std::vector<std::string> deleted;
  disk.FailWhile([&](const std::string& op, const std::string& path) {
    if (op == "DeleteTree") deleted.push_back(path);
    return testing::FaultKind::kNone;
  });
  tree->reset();
  disk.FailWhile(nullptr);
  EXPECT_THAT(deleted,
              ElementsAre("/d/.rankprobe-export/lock",
                          "/d/.rankprobe-export/new", "/d/.rankprobe-export"));
}

TEST_F(StagedTreeTest, AnInterruptedExportIsTakenUp) {
  {
    const auto tree = Open(Leftovers::kDelete);
    Write(tree->PathOf(kA), "aa");
    tree->Keep();
  }
  {
    // Interrupted again, before anything was reused.
    const auto tree = Open(Leftovers::kReuse);
    Write(tree->PathOf(kB), "b");
    tree->Keep();
  }
  const auto tree = Open(Leftovers::kReuse);
  const auto files = tree->ReusableFiles();
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->size(), 2u);
  EXPECT_EQ((*files)[0].path, kA);
  EXPECT_EQ((*files)[0].length_bytes, 2u);
  EXPECT_EQ((*files)[0].xxh3, XXH3_64bits("aa", 2));
  EXPECT_EQ(tree->ReusableXxh3(kA, 2), XXH3_64bits("aa", 2));
  EXPECT_EQ(tree->ReusableXxh3(kA, 3), std::nullopt);
  EXPECT_EQ(tree->ReusableXxh3("step0/rank0/c.pt", 2), std::nullopt);
  Write(tree->PathOf("step0/rank0/dump_tensor_data/c.pt"), "c");
  ASSERT_TRUE(tree->Reuse(kA).ok());
  ASSERT_TRUE(tree->Publish().ok());
  // Files that were not requested again are not published.
  EXPECT_THAT(*fs_->List(root_ + "/step0/rank0/dump_tensor_data"),
              ElementsAre("a.pt", "c.pt"));
  EXPECT_THAT(*fs_->List(root_), ElementsAre(".rankprobe-published", "step0"));
}

TEST_F(StagedTreeTest, WithoutReuseLeftoversGo) {
  {
    const auto tree = Open(Leftovers::kDelete);
    Write(tree->PathOf(kA), "a");
    tree->Keep();
  }
  const auto tree = Open(Leftovers::kDelete);
  EXPECT_TRUE(tree->ReusableFiles()->empty());
  EXPECT_FALSE(fs_->Exists(tree->PathOf(kA)));
}

TEST_F(StagedTreeTest, LinksShareTheirBytes) {
  const auto tree = Open(Leftovers::kDelete);
  Write(tree->PathOf(kA), "abc");
  ASSERT_TRUE(tree->Link(kB, kA).ok());
  ASSERT_TRUE(tree->Publish().ok());
  EXPECT_EQ(Read(root_ + "/" + kB), "abc");
  EXPECT_EQ(std::filesystem::hard_link_count(root_ + "/" + kA), 2u);
}

}  // namespace
}  // namespace rankprobe
