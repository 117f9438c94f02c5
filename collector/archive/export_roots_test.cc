// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/export_roots.h"

#include <filesystem>
#include <string>

#include "common/testing/scratch_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

class ExportRootsTest : public ::testing::Test {
 protected:
  ExportRootsTest() { fs::create_directory(outside_); }

  absl::StatusCode CodeOf(const std::string& path) {
    return roots_.Open({path}).status().code();
  }

  const testing::ScratchDirectory scratch_;
  const std::string root_ = scratch_.path() + "/root";
  const std::string outside_ = scratch_.path() + "/outside";
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  const ExportRoots roots_{{root_, scratch_.path() + "/second/deep"},
                           files_.get()};
};

TEST_F(ExportRootsTest, RootsAreMadeAndNothingElse) {
  const auto places =
      roots_.Open({root_ + "/a/b//", scratch_.path() + "/second/deep/./s"});
  ASSERT_TRUE(places.ok()) << places.status();
  EXPECT_THAT(places->directories,
              ElementsAre(root_ + "/a/b", scratch_.path() + "/second/deep/s"));
  EXPECT_TRUE(fs::is_empty(root_));
  EXPECT_TRUE(fs::is_empty(scratch_.path() + "/second/deep"));
  for (const std::string& directory : places->directories)
    EXPECT_TRUE(places->files->CreateDirectories(directory).ok());
  EXPECT_TRUE(fs::is_directory(root_ + "/a/b"));
}

TEST_F(ExportRootsTest, OtherPlacesAreRefused) {
  fs::create_directory(root_);
  fs::create_symlink(outside_, root_ + "/away");
  for (const std::string& path :
       {outside_ + "/x", root_ + "/../outside/x", root_ + "/away/x",
        root_ + "-sibling/x", std::string("/etc/x"),
        std::string("/proc/self/cwd/x")})
    EXPECT_EQ(CodeOf(path), absl::StatusCode::kPermissionDenied) << path;
  std::string deep;
  for (int i = 0; i < 1600; ++i) deep += "d/";
  for (const std::string& path :
       {std::string(), std::string("relative"),
        root_ + std::string("/a\0/x", 5), root_ + "/" + std::string(300, 'x'),
        root_ + "/" + deep})
    EXPECT_EQ(CodeOf(path), absl::StatusCode::kInvalidArgument) << path;
  EXPECT_EQ(ExportRoots({}, files_.get()).Open({root_}).status().code(),
            absl::StatusCode::kPermissionDenied);
}

// The path of the root may contain links of the administrator, and either name
// of it works.
TEST_F(ExportRootsTest, LinksAboveTheRootAreTheAdministrators) {
  fs::create_directory(root_);
  fs::create_symlink(scratch_.path(), scratch_.path() + "/alias");
  const ExportRoots aliased({scratch_.path() + "/alias/root"}, files_.get());
  for (const std::string& path :
       {root_ + "/x", scratch_.path() + "/alias/root/x"}) {
    const auto places = aliased.Open({path});
    ASSERT_TRUE(places.ok()) << places.status();
    EXPECT_EQ(places->directories.front(), root_ + "/x");
    EXPECT_TRUE(places->files->CreateDirectories(root_ + "/x").ok());
  }
}

// A link that is created after the path was checked.
TEST_F(ExportRootsTest, ALinkPlantedLaterLeadsNowhere) {
  const auto places = roots_.Open({root_ + "/x"});
  ASSERT_TRUE(places.ok());
  fs::create_symlink(outside_, root_ + "/x");
  EXPECT_EQ(places->files->CreateDirectories(root_ + "/x/y").code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(fs::is_empty(outside_));
}

}  // namespace
}  // namespace rankprobe
