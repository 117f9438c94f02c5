// SPDX-License-Identifier: Apache-2.0
#include "web/graph/graph_root.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class GraphRootTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "graph_rootXXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    base_ = pattern;
    fs::create_directories(base_ / "root/deep/er");
    Write("outside.vis.db", "secret");
    auto root = GraphRoot::Open(base_ / "root");
    ASSERT_TRUE(root.ok()) << root.status();
    root_ = *std::move(root);
  }
  void TearDown() override { fs::remove_all(base_); }
  void Write(const fs::path& path, const std::string& text) const {
    fs::create_directories((base_ / path).parent_path());
    std::ofstream(base_ / path) << text;
  }

  fs::path base_;
  std::unique_ptr<GraphRoot> root_;
};

TEST_F(GraphRootTest, FindsDatabasesAndDumps) {
  Write("root/deep/compare_1.vis.db", "db");
  Write("root/run/step0/rank0/dump.json", "{}");
  Write("root/run/step0/rank1/dump.json", "{}");
  Write("root/run/step5/rank1/dump.json", "{}");
  Write("root/ranks/proc12/dump.json", "{}");
  Write("root/single/dump.json", "{}");
  Write("root/run/step0/rank0/dump_tensor_data/x.vis.db", "not looked at");
  fs::create_symlink(base_ / "outside.vis.db", base_ / "root/link.vis.db");
  const Found found = root_->List();
  ASSERT_EQ(found.databases.size(), 1u);
  EXPECT_EQ(found.databases[0].path, "deep/compare_1.vis.db");
  EXPECT_EQ(found.databases[0].size_bytes, 2u);
  ASSERT_EQ(found.dumps.size(), 3u);
  EXPECT_EQ(found.dumps[0].path, "ranks");
  EXPECT_EQ(found.dumps[1].path, "run");
  EXPECT_EQ(found.dumps[1].steps, 2);
  EXPECT_EQ(found.dumps[1].ranks, 2);
  EXPECT_EQ(found.dumps[2].path, "single");
  EXPECT_FALSE(found.truncated);
}

TEST_F(GraphRootTest, NothingOutsideIsReached) {
  fs::create_symlink(base_ / "outside.vis.db", base_ / "root/link.vis.db");
  fs::create_directory_symlink(base_, base_ / "root/up");
  ASSERT_EQ(::mkfifo((base_ / "root/pipe.vis.db").c_str(), 0600), 0);
  for (const char* path :
       {"../outside.vis.db", "deep/../../outside.vis.db", "/etc/passwd",
        "link.vis.db", "up/outside.vis.db", "pipe.vis.db", "deep", "", ".",
        "deep//x", "gone.vis.db"}) {
    EXPECT_FALSE(root_->OpenFile(path).ok()) << path;
    EXPECT_FALSE(root_->ReadText(path, 100).ok()) << path;
  }
  EXPECT_THAT(root_->OpenFile("link.vis.db").status().message(),
              HasSubstr("symbolic link"));
  EXPECT_FALSE(root_->OpenFile(std::string("a\0b", 3)).ok());
  for (const char* path : {"../new", "up/new", "link.vis.db", "deep", ""}) {
    EXPECT_FALSE(root_->WriteText(path, "x").ok()) << path;
  }
  EXPECT_FALSE(fs::exists(base_ / "new"));
  EXPECT_EQ(root_->DirectoryOf("../x").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(GraphRootTest, AFileAppearsWholeAndIsReadUpToItsLimit) {
  ASSERT_TRUE(root_->WriteText("deep/a.vis.config", "one").ok());
  ASSERT_TRUE(root_->WriteText("deep/a.vis.config", "second").ok());
  const auto text = root_->ReadText("deep/a.vis.config", 6);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "second");
  EXPECT_EQ(root_->ReadText("deep/a.vis.config", 5).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::distance(fs::directory_iterator(base_ / "root/deep"),
                          fs::directory_iterator()),
            2);
}

TEST_F(GraphRootTest, WhatIsNoDirectoryIsSaid) {
  EXPECT_EQ(GraphRoot::Open(base_ / "gone").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(GraphRoot::Open(base_ / "outside.vis.db").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace rankprobe
