#include <string>
#include <vector>

#include "cli/exit_codes.h"
#include "cli/export_files.h"
#include "cli/output.h"
#include "cli/ranges.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
    EXPECT_EQ(files.Finish().code(), absl::StatusCode::kDataLoss);
    event.mutable_file_begin()->set_path("../evil");
    EXPECT_FALSE(files.OnEvent(event).ok());
  }
  EXPECT_TRUE(file_system->List(root)->empty());
  ASSERT_TRUE(file_system->DeleteTree(root).ok());
}

TEST(TableTest, AlignsNumbersToTheRight) {
  Table table({"RUN", "STEPS"});
  table.Add({"a", "7"});
  table.Add({"longer", "100"});
  EXPECT_EQ(table.ToText(), "RUN     STEPS\na           7\nlonger    100\n");
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

}  // namespace
}  // namespace rankprobe
