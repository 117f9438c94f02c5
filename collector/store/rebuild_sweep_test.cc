// SPDX-License-Identifier: Apache-2.0
// Content of a rebuilt index: everything that can be found again.
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collector/store/rebuild.h"
#include "collector/store/store.h"
#include "collector/store/testing/damage_fixture.h"
#include "collector/testing/frames.h"
#include "common/testing/fault_file_system.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::DamageTest;
using testing::FaultFileSystem;
using testing::FaultKind;
using testing::Frames;
using ::testing::HasSubstr;
using testing::MakeIdentity;
using testing::RandomBytes;

class RebuildTest : public DamageTest {
 protected:
  // Writes two runs over several segments, one payload of which has many
  // chunks.
  void Fill() {
    Frames first(MakeIdentity("run", 0, 1)),
        second(MakeIdentity("other", 3, 2));
    for (uint64_t i = 0; i < 12; ++i) {
      data_.push_back(i % 4 == 1 ? std::string(9000 + i, 'z')
                                 : RandomBytes(i, 9000 + i));
      first.AddStep(static_cast<int64_t>(i), data_.back(), 4000);
      second.AddStep(static_cast<int64_t>(i), RandomBytes(100 + i, 700));
    }
    auto store = Open(/*segment_bytes=*/30000, /*compress=*/true);
    ASSERT_TRUE(store.ok()) << store.status();
    for (size_t i = 0; i < first.size(); ++i)
      ASSERT_TRUE((*store)->Commit(first.Range(i, i + 1)).ok());
    ASSERT_TRUE((*store)->Commit(second.All()).ok());
    ASSERT_TRUE((*store)->Sync().ok());
  }
  absl::StatusOr<RebuildReport> Rebuild() {
    return RebuildIndex(Options(), file_system_.get(), &clock_,
                        [](absl::string_view, absl::string_view digest) {
                          return std::string(digest);
                        });
  }
  // Returns how many of the payloads are served; expects those to be correct.
  size_t Served(Store* store, const std::string& run) {
    size_t served = 0;
    for (const std::string& data : data_) {
      const auto out = testing::ReadBack(store, data, run);
      if (!out.ok()) continue;
      EXPECT_EQ(*out, data);
      ++served;
    }
    return served;
  }

  std::vector<std::string> data_;
};

TEST_F(RebuildTest, ASoundArchiveStaysWhatItIs) {
  Fill();
  const auto report = Rebuild();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->runs, 2u);
  EXPECT_EQ(report->records, 48u);
  EXPECT_EQ(report->payloads, 24u);
  EXPECT_EQ(report->payloads_found, 0u);
  EXPECT_EQ(report->damaged_places, 0u);
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(Verify(store->get()).fault_count(), 0u);
  EXPECT_EQ(Served(store->get(), "run"), data_.size());
  EXPECT_EQ(*(*store)->OpenIncarnation(MakeIdentity("other", 3, 2)), 24u);
  EXPECT_TRUE(absl::IsFailedPrecondition(Rebuild().status())) << "it is held";
}

TEST_F(RebuildTest, WithoutAnIndexThePayloadsAreFound) {
  Fill();
  ASSERT_TRUE(file_system_->DeleteTree(root_ + "/data/index").ok());
  Flip(Segment(2), 70);
  auto report = Rebuild();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->runs, 2u);
  EXPECT_EQ(report->payloads_found, 23u);
  EXPECT_EQ(report->incomplete_payloads, 1u);
  ASSERT_EQ(report->damaged.size(), 1u);
  EXPECT_THAT(report->damaged[0], HasSubstr("0000000002.seg at byte"));
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(Served(store->get(), "recovered-1"), data_.size() - 1);
  // No record refers to them, but they do not count as garbage.
  clock_.Advance(absl::Hours(2));
  ASSERT_TRUE((*store)->CollectGarbage({}).ok());
  EXPECT_EQ(Served(store->get(), "recovered-1"), data_.size() - 1);
  EXPECT_EQ(Verify(store->get()).fault_count(), 0u);
}

TEST_F(RebuildTest, WithoutCurrentTheRecordsAreSaved) {
  Fill();
  ASSERT_TRUE(file_system_->Delete(root_ + "/data/index/CURRENT").ok());
  ASSERT_TRUE(absl::IsDataLoss(Open().status()));
  const auto report = Rebuild();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->records, 48u);
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(Served(store->get(), "run"), data_.size());
  EXPECT_EQ((*store)->ListSteps("run")->size(), 12u);
  EXPECT_EQ(Verify(store->get()).fault_count(), 0u);
}

TEST_F(RebuildTest, WhereNothingIsNothingIsMade) {
  EXPECT_TRUE(absl::IsNotFound(Rebuild().status()));
  EXPECT_FALSE(file_system_->Exists(root_ + "/data"));
}

// LevelDB's repair replaces logs by tables before a manifest names them, and
// rows are deleted before they are written again.
TEST_F(RebuildTest, OneThatCameToNoEndIsNotServed) {
  StoreOptions options = testing::OptionsAt("/d");
  for (int64_t i = 0; i < 4; ++i)
    data_.push_back(RandomBytes(static_cast<uint64_t>(i), 5000));
  Frames frames(MakeIdentity("run", 0, 1));
  for (int64_t i = 0; i < 4; ++i)
    frames.AddStep(i, data_[static_cast<size_t>(i)], 2000);
  bool done = false;
  size_t refused = 0;
  for (int allowed = 0; !done; allowed += 4) {
    SCOPED_TRACE(allowed);
    FaultFileSystem disk;
    const auto rebuild = [&] {
      return RebuildIndex(options, &disk, &clock_,
                          [](absl::string_view, absl::string_view digest) {
                            return std::string(digest);
                          })
          .status();
    };
    {
      const auto store = Store::Open(options, &disk, &clock_);
      ASSERT_TRUE(store.ok()) << store.status();
      ASSERT_TRUE((*store)->Commit(frames.All()).ok());
    }
    int left = allowed;
    disk.FailWhile([&left](const std::string&, const std::string&) {
      return --left >= 0 ? FaultKind::kNone : FaultKind::kIoError;
    });
    done = rebuild().ok();
    disk.FailWhile(nullptr);
    auto store = Store::Open(options, &disk, &clock_);
    if (!store.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(store.status())) << store.status();
      EXPECT_THAT(std::string(store.status().message()),
                  HasSubstr("was interrupted"));
      ++refused;
      const absl::Status again = rebuild();
      ASSERT_TRUE(again.ok()) << again;
      store = Store::Open(options, &disk, &clock_);
    }
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_EQ((*store)->ListSteps("run")->size(), 4u);
    EXPECT_EQ(Served(store->get(), "run"), 4u);
    EXPECT_EQ(Verify(store->get()).fault_count(), 0u);
  }
  EXPECT_GT(refused, 5u);
}

// One flipped bit at each of many places of every file of an archive:
// unaffected data is served, byte by byte, or the start is refused with a
// message; a flip that loses data is always reported.
TEST_F(RebuildTest, ABitFlipSweepOverEveryFile) {
  Fill();
  const std::string data_dir = root_ + "/data", saved = root_ + "/saved";
  std::map<std::string, std::string> files;
  for (const std::string directory : {"index", "segments", "."}) {
    const std::vector<std::string> names =
        *file_system_->List(absl::StrCat(data_dir, "/", directory));
    for (const std::string& name : names) {
      const std::string path = absl::StrCat(directory, "/", name);
      if (name != "LOCK" && name != "index" && name != "segments")
        files[path] = Slurp(absl::StrCat(data_dir, "/", path));
    }
  }
  ASSERT_GE(files.size(), 7u);
  size_t flips = 0, refused = 0, named = 0;
  for (const auto& [path, bytes] : files) {
    if (bytes.empty()) continue;
    // Headers, and places spread over the rest.
    std::set<size_t> places = {0, 4, 30, 47, 51, 60, bytes.size() - 1};
    for (size_t i = 1; i < 7; ++i) places.insert(bytes.size() * i / 7);
    for (const size_t place : places) {
      if (place >= bytes.size()) continue;
      SCOPED_TRACE(absl::StrCat(path, " at ", place));
      ASSERT_TRUE(file_system_->DeleteTree(data_dir).ok());
      for (const std::string directory : {"index", "segments"})
        ASSERT_TRUE(
            file_system_->CreateDirectories(data_dir + "/" + directory).ok());
      for (const auto& [other, content] : files)
        Spit(absl::StrCat(data_dir, "/", other), content);
      Flip(absl::StrCat(data_dir, "/", path), place,
           static_cast<int>(place % 8));
      ++flips;
      auto store = Open();
      if (!store.ok()) {
        EXPECT_NE(store.status().message(), "");
        EXPECT_EQ(path.find("segments"), std::string::npos)
            << "an archive opens whatever is in a segment: " << store.status();
        ++refused;
        // A rebuild must be possible.
        const auto report = Rebuild();
        ASSERT_TRUE(report.ok()) << report.status();
        store = Open();
        ASSERT_TRUE(store.ok()) << store.status();
        continue;
      }
      v1::VerifyRequest request;
      request.set_read_data(true);
      const auto report = (*store)->Verify(request, {});
      const bool told = !report.ok() || report->fault_count() > 0 ||
                        (*store)->recovery().lost_syncs > 0;
      named += told ? 1 : 0;
      const size_t served = Served(store->get(), "run");
      if (absl::StartsWith(path, "segments")) {
        EXPECT_TRUE(told);
        EXPECT_GE(served, data_.size() - 1) << "its neighbours are not touched";
      } else if (served < data_.size()) {
        EXPECT_TRUE(told) << served << " of " << data_.size() << " are served";
      }
      uint64_t records = 0;
      const auto steps = (*store)->ListSteps("run");
      if (steps.ok()) {
        for (const v1::StepInfo& step : *steps) records += step.records();
      }
      if (records < 24) EXPECT_TRUE(told) << records << " records are here";
    }
  }
  EXPECT_GT(flips, 60u);
  EXPECT_GT(named, 30u);
  RecordProperty("refused", static_cast<int>(refused));
}

}  // namespace
}  // namespace rankprobe
