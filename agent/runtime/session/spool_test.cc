// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/spool.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/io/checksum_field.h"
#include "common/io/crc32c.h"
#include "common/testing/fault_file_system.h"
#include "gtest/gtest.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {
namespace {

using testing::FaultFileSystem;
using testing::FaultKind;

class SpoolTest : public ::testing::Test {
 protected:
  std::unique_ptr<Spool> Open(uint64_t max_bytes = 1 << 20,
                              uint64_t incarnation = 7) {
    v1::Identity identity;
    identity.set_run("run");
    identity.set_rank(3);
    identity.set_incarnation(incarnation);
    Spool::Options options;
    options.directory = "/spool";
    options.max_bytes = max_bytes;
    options.file_bytes = 4000;
    options.secret = "secret";
    auto spool = Spool::Open(options, identity, &fs_);
    EXPECT_TRUE(spool.ok()) << spool.status();
    return spool.ok() ? *std::move(spool) : nullptr;
  }
  static absl::Status Append(Spool* spool, uint64_t sequence) {
    v1::UploadFrame frame;
    frame.set_sequence(sequence);
    frame.mutable_chunk()->set_data(std::string(500, 'x'));
    const std::string bytes = frame.SerializeAsString();
    return spool->Append(sequence, absl::string_view(bytes).substr(0, 10),
                         absl::string_view(bytes).substr(10),
                         ChecksumField(Crc32c(bytes)));
  }
  static std::vector<uint64_t> Sequences(OrphanSpool* spool) {
    std::vector<uint64_t> out;
    for (;;) {
      const absl::StatusOr<OrphanSpool::Frame> frame = spool->Next();
      if (!frame.ok()) break;
      out.push_back(frame->sequence);
    }
    return out;
  }

  std::vector<std::unique_ptr<OrphanSpool>> Find() {
    return OrphanSpool::Find(
        "/spool", &fs_,
        [this](const std::string& path) {
          return !absl::EndsWith(path, foreign_);
        },
        &passed_over_);
  }

  FaultFileSystem fs_;
  std::string foreign_ = "none";
  int passed_over_ = 0;
};

// Otherwise it would be sent in this user's name.
TEST_F(SpoolTest, WhatIsNotOurOwnIsPassedOver) {
  std::unique_ptr<Spool> spool = Open();
  ASSERT_TRUE(Append(spool.get(), 1).ok());
  spool.reset();
  for (const char* foreign : {".lock", ".spool"}) {
    foreign_ = foreign;
    passed_over_ = 0;
    EXPECT_TRUE(Find().empty());
    EXPECT_EQ(passed_over_, 1);
  }
  foreign_ = "none";
  EXPECT_EQ(Find().size(), 1u) << "it is still there";
}

TEST(IsOwnFileTest, LinksAndWhatOthersCanChangeAreNot) {
  const std::string directory = ::testing::TempDir();
  const std::string path = directory + "/own_file", link = directory + "/link";
  std::ofstream(path) << "x";
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  EXPECT_TRUE(IsOwnFile(path));
  ::unlink(link.c_str());
  ASSERT_EQ(::symlink(path.c_str(), link.c_str()), 0);
  EXPECT_FALSE(IsOwnFile(link));
  EXPECT_FALSE(IsOwnFile(directory));
  ASSERT_EQ(::chmod(path.c_str(), 0660), 0);
  EXPECT_FALSE(IsOwnFile(path));
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
    EXPECT_FALSE(IsOwnFile(path));
  }
  ::unlink(path.c_str());
}

TEST_F(SpoolTest, BehindWhatIsNotHereNothingIsUntilThatIsCommitted) {
  std::unique_ptr<Spool> spool = Open();
  ASSERT_TRUE(Append(spool.get(), 1).ok());
  spool->Skip(2);
  EXPECT_FALSE(Append(spool.get(), 3).ok());
  spool->Committed(1);
  EXPECT_FALSE(Append(spool.get(), 4).ok()) << "2 may be lost with us";
  spool->Committed(3);
  EXPECT_FALSE(Append(spool.get(), 5).ok()) << "nor was 4 here";
  spool->Committed(5);
  ASSERT_TRUE(Append(spool.get(), 6).ok());
  spool.reset();
  auto orphans = Find();
  ASSERT_EQ(orphans.size(), 1u);
  EXPECT_EQ(Sequences(orphans[0].get()), std::vector<uint64_t>{6});
}

TEST_F(SpoolTest, WhatADeadProcessLeftIsFoundAndRemoved) {
  std::unique_ptr<Spool> spool = Open();
  for (uint64_t i = 1; i <= 30; ++i) ASSERT_TRUE(Append(spool.get(), i).ok());
  EXPECT_TRUE(Find().empty()) << "its process is alive";
  spool->Committed(12);
  spool.reset();
  auto orphans = Find();
  ASSERT_EQ(orphans.size(), 1u);
  EXPECT_EQ(orphans[0]->identity().rank(), 3);
  EXPECT_EQ(orphans[0]->identity().incarnation(), 7u);
  EXPECT_EQ(orphans[0]->secret(), "secret");
  const std::vector<uint64_t> sequences = Sequences(orphans[0].get());
  ASSERT_FALSE(sequences.empty());
  EXPECT_LE(sequences.front(), 13u);
  EXPECT_EQ(sequences.back(), 30u);
  EXPECT_EQ(sequences.size(), 31 - sequences.front()) << "no holes";
  orphans[0]->Rewind();
  EXPECT_EQ(Sequences(orphans[0].get()), sequences);
  ASSERT_TRUE(orphans[0]->Remove().ok());
  orphans.clear();
  EXPECT_TRUE(fs_.List("/spool")->empty());
}

TEST_F(SpoolTest, NothingIsLeftWhenAllIsCommitted) {
  std::unique_ptr<Spool> spool = Open();
  for (uint64_t i = 1; i <= 30; ++i) ASSERT_TRUE(Append(spool.get(), i).ok());
  spool->Committed(30);
  spool.reset();
  EXPECT_TRUE(fs_.List("/spool")->empty());
}

// A process that cleans up after killed processes may be killed itself.
TEST_F(SpoolTest, OneWithoutItsLockIsFoundToo) {
  std::unique_ptr<Spool> spool = Open();
  ASSERT_TRUE(Append(spool.get(), 1).ok());
  spool.reset();
  const auto names = fs_.List("/spool");
  ASSERT_TRUE(names.ok());
  for (const std::string& name : *names) {
    if (absl::EndsWith(name, ".lock"))
      ASSERT_TRUE(fs_.Delete("/spool/" + name).ok());
  }
  auto notes =
      *fs_.OpenForWrite("/spool/notes.spool", FileSystem::OpenMode::kTruncate);
  foreign_ = ".spool";
  EXPECT_TRUE(Find().empty());
  EXPECT_EQ(passed_over_, 1) << "notes are no spool";
  EXPECT_EQ(fs_.List("/spool")->size(), 2u) << "no lock is made for others'";
  foreign_ = "none";
  auto orphans = Find();
  ASSERT_EQ(orphans.size(), 1u);
  EXPECT_TRUE(Find().empty()) << "we hold it";
  EXPECT_EQ(Sequences(orphans[0].get()), std::vector<uint64_t>{1});
  ASSERT_TRUE(orphans[0]->Remove().ok());
  EXPECT_EQ(fs_.List("/spool")->size(), 1u);
}

// The listing of the directory is older than the lock.
TEST_F(SpoolTest, OneThatBeganAFileWhileItWasLookedForKeepsIt) {
  std::unique_ptr<Spool> spool = Open();
  foreign_ = "none";
  const auto orphans = OrphanSpool::Find(
      "/spool", &fs_,
      [&](const std::string&) {
        if (spool != nullptr) EXPECT_TRUE(Append(spool.get(), 1).ok());
        spool.reset();
        return true;
      },
      &passed_over_);
  ASSERT_EQ(orphans.size(), 1u);
  EXPECT_EQ(Sequences(orphans[0].get()), std::vector<uint64_t>{1});
}

// A full spool accepts nothing more until it is empty: the collector would
// refuse a gap.
TEST_F(SpoolTest, IsBoundedAndHasNoHoles) {
  std::unique_ptr<Spool> spool = Open(/*max_bytes=*/10000);
  uint64_t taken = 0;
  for (uint64_t i = 1; i <= 40; ++i) taken += Append(spool.get(), i).ok();
  EXPECT_GT(taken, 10u);
  EXPECT_LT(taken, 20u);
  EXPECT_LE(spool->bytes(), 10000u);
  spool->Committed(8);
  EXPECT_TRUE(absl::IsResourceExhausted(Append(spool.get(), 41)));
  spool->Committed(41);
  EXPECT_EQ(spool->bytes(), 0u);
  EXPECT_TRUE(Append(spool.get(), 42).ok());
  spool.reset();
  auto orphans = Find();
  ASSERT_EQ(orphans.size(), 1u);
  EXPECT_EQ(Sequences(orphans[0].get()), (std::vector<uint64_t>{42}));
}

TEST_F(SpoolTest, ATornFrameEndsIt) {
  std::unique_ptr<Spool> spool = Open();
  for (uint64_t i = 1; i <= 5; ++i) ASSERT_TRUE(Append(spool.get(), i).ok());
  fs_.FailCall(fs_.calls() + 1, FaultKind::kShortWrite);
  EXPECT_FALSE(Append(spool.get(), 6).ok());
  EXPECT_FALSE(Append(spool.get(), 7).ok()) << "there would be a hole";
  spool.reset();
  auto orphans = Find();
  ASSERT_EQ(orphans.size(), 1u);
  EXPECT_EQ(Sequences(orphans[0].get()),
            (std::vector<uint64_t>{1, 2, 3, 4, 5}));
}

// The disk is full at each call that begins a file, and frames are kept once
// there is space again. `is_deleted`: the file that was begun can be deleted.
TEST_F(SpoolTest, AFileThatCouldNotBeBegunHidesNoneThatCameLater) {
  for (const bool is_deleted : {true, false}) {
    for (uint64_t call = 1; call <= 3; ++call) {
      SCOPED_TRACE(call);
      const uint64_t incarnation = 100 * (is_deleted ? 1 : 2) + call;
      std::unique_ptr<Spool> spool = Open(1 << 20, incarnation);
      if (!is_deleted) {
        fs_.FailWhile([](const std::string& op, const std::string& path) {
          return op == "Delete" && absl::EndsWith(path, ".00000000.spool")
                     ? FaultKind::kIoError
                     : FaultKind::kNone;
        });
      }
      fs_.FailCall(fs_.calls() + call, FaultKind::kShortWrite);
      EXPECT_FALSE(Append(spool.get(), 1).ok()) << fs_.faulty_call();
      if (is_deleted) EXPECT_EQ(fs_.List("/spool")->size(), 1u) << "the lock";
      spool->Committed(1);
      ASSERT_TRUE(Append(spool.get(), 2).ok());
      spool.reset();
      fs_.FailWhile(nullptr);
      auto orphans = Find();
      ASSERT_EQ(orphans.size(), 1u);
      EXPECT_EQ(orphans[0]->identity().incarnation(), incarnation);
      EXPECT_EQ(Sequences(orphans[0].get()), std::vector<uint64_t>{2});
      ASSERT_TRUE(orphans[0]->Remove().ok());
      EXPECT_TRUE(fs_.List("/spool")->empty());
    }
  }
}

TEST_F(SpoolTest, FilesThatAreNoSpoolAreLeftAlone) {
  ASSERT_TRUE(fs_.CreateDirectories("/spool").ok());
  { auto lock = *fs_.Lock("/spool/0000000000000009.lock"); }
  auto file = *fs_.OpenForWrite("/spool/0000000000000009.lock",
                                FileSystem::OpenMode::kTruncate);
  auto junk = *fs_.OpenForWrite("/spool/0000000000000009.00000000.spool",
                                FileSystem::OpenMode::kTruncate);
  ASSERT_TRUE(junk->Append(absl::string_view("something else")).ok());
  EXPECT_TRUE(Find().empty());
  EXPECT_EQ(fs_.List("/spool")->size(), 2u);
  // A spool whose process was killed before its first frame was complete is
  // removed.
  auto torn = *fs_.OpenForWrite("/spool/0000000000000009.00000000.spool",
                                FileSystem::OpenMode::kTruncate);
  ASSERT_TRUE(torn->Append(absl::string_view("RPQ3\xff\xff\xff\xff....")).ok());
  EXPECT_TRUE(Find().empty());
  EXPECT_TRUE(fs_.List("/spool")->empty());
}

}  // namespace
}  // namespace rankprobe
