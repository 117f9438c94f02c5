// SPDX-License-Identifier: Apache-2.0
// The store over a file system that fails at each of its calls in turn, forgets
// what was not synced, and fills up.
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "collector/store/index.h"
#include "collector/store/keys.h"
#include "collector/store/store.h"
#include "collector/testing/frames.h"
#include "common/base/monotonic_event.h"
#include "common/testing/fault_file_system.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::DigestOf;
using testing::FaultFileSystem;
using testing::FaultKind;
using testing::Frames;
using testing::MakeIdentity;

constexpr int64_t kSteps = 8;

std::string PayloadOf(int64_t step) {
  return testing::RandomBytes(static_cast<uint64_t>(step) + 7,
                              9000 + static_cast<size_t>(step) * 700);
}

// Returns frames of kSteps steps, each with one payload in three chunks and one
// call that refers to it.
Frames MakeFrames() {
  Frames frames(MakeIdentity("run", 0, 1));
  for (int64_t step = 0; step < kSteps; ++step)
    frames.AddStep(step, PayloadOf(step), 4000);
  return frames;
}

class StoreFaultTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Store>> Open(uint64_t min_free_bytes = 0) {
    StoreOptions options{.data_dir = "/d",
                         .segment_bytes = 10000,
                         .leveldb_write_buffer_bytes = 64 << 10,
                         .leveldb_cache_bytes = 1 << 20,
                         .min_free_bytes = min_free_bytes};
    return Store::Open(options, &fs_, &clock_);
  }

  // What the caller was told.
  struct Acked {
    uint64_t committed = 0;
    uint64_t synced = 0;
    bool deleted = false;
    // The error came from a write that was to be acknowledged, not from a
    // cleanup, which may be repeated.
    bool writing = true;
  };

  // Writes all frames, syncs from time to time, deletes a step, compacts.
  absl::Status Work(Store* store, Acked* acked) {
    const std::vector<FrameToStore> all = frames_.All();
    for (size_t i = acked->committed; i < all.size(); ++i) {
      if (const absl::Status s = store->Commit({all[i]}); !s.ok()) return s;
      acked->committed = i + 1;
      if (i % 5 == 4) {
        if (const absl::Status s = store->Sync(); !s.ok()) return s;
        acked->synced = acked->committed;
      }
    }
    clock_.Advance(absl::Hours(1));
    acked->writing = false;
    if (!acked->deleted) {
      const auto report =
          store->Delete({"run", std::set<int64_t>{0, 2, 3}, {}});
      // The step was already deleted in the first round.
      if (!report.ok() && !absl::IsNotFound(report.status()))
        return report.status();
      acked->deleted = true;
    }
    const auto garbage = store->CollectGarbage({});
    if (!garbage.ok()) return garbage.status();
    acked->writing = true;
    if (const absl::Status s = store->Sync(); !s.ok()) return s;
    acked->synced = acked->committed;
    return absl::OkStatus();
  }

  // Expects that everything up to `sequence` exists, bit by bit, or is deleted.
  void ExpectHas(Store* store, uint64_t sequence, bool may_be_deleted) {
    const auto resume = store->OpenIncarnation(frames_.identity());
    ASSERT_TRUE(resume.ok()) << resume.status();
    EXPECT_GE(*resume, sequence);
    EXPECT_LE(*resume, frames_.size());
    std::set<int64_t> deleted;
    const auto steps = store->ListSteps("run");
    ASSERT_TRUE(steps.ok()) << steps.status();
    for (const v1::StepInfo& step : *steps) {
      if (step.deleted()) deleted.insert(step.step());
    }
    if (!may_be_deleted) EXPECT_TRUE(deleted.empty());
    uint64_t at = 0;
    for (int64_t step = 0; step < kSteps; ++step) {
      const std::string data = PayloadOf(step);
      at += (data.size() + 3999) / 4000 + 1;
      if (at > sequence || deleted.count(step) > 0) continue;
      StepKey key{.run = "run", .step = step, .incarnation = 1};
      int records = 0;
      EXPECT_TRUE(store
                      ->ForEachRecord(key,
                                      [&](const v1::Record& record) {
                                        records += record.has_call() ? 1 : 0;
                                        return absl::OkStatus();
                                      })
                      .ok());
      EXPECT_EQ(records, 1) << "step " << step;
      const auto out = testing::ReadBack(store, data);
      ASSERT_TRUE(out.ok()) << "step " << step << ": " << out.status();
      EXPECT_EQ(*out, data) << "step " << step;
    }
  }
  void ExpectSound(Store* store) {
    v1::VerifyRequest request;
    request.set_read_data(true);
    const auto report = store->Verify(request, {});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->fault_count(), 0u) << report->DebugString();
  }

  uint64_t CallsOfWork() {
    Acked acked;
    auto store = Open();
    EXPECT_TRUE(store.ok()) << store.status();
    EXPECT_TRUE(Work(store->get(), &acked).ok());
    store->reset();
    return fs_.calls();
  }

  FaultFileSystem fs_;
  ManualClock clock_;
  const Frames frames_ = MakeFrames();
};

// One test case: a new file system with the fault at one call.
class OneFault : public StoreFaultTest {
 public:
  void TestBody() override {}
  void Run(uint64_t call, FaultKind kind, FaultFileSystem::Unsynced unsynced) {
    fs_.FailCall(call, kind);
    Acked acked;
    absl::Status status;
    {
      auto store = Open();
      status = store.status();
      if (store.ok()) {
        status = Work(store->get(), &acked);
        if (!status.ok() && !absl::IsResourceExhausted(status) &&
            acked.writing) {
          EXPECT_FALSE((*store)->Sync().ok())
              << "a failed store must stay failed";
        }
        if (absl::IsResourceExhausted(status)) {
          // There is room again: the same store continues.
          const absl::Status again = Work(store->get(), &acked);
          EXPECT_TRUE(again.ok()) << again;
          ExpectHas(store->get(), frames_.size(), true);
          ExpectSound(store->get());
        }
      }
    }
    if (kind == FaultKind::kCrash) {
      fs_.CrashAndRestart(unsynced);
    } else {
      fs_.FailCall(0, FaultKind::kNone);
    }
    auto store = Open();
    ASSERT_TRUE(store.ok()) << store.status();
    ExpectHas(store->get(),
              kind == FaultKind::kCrash ? acked.synced : acked.committed, true);
    ExpectSound(store->get());
    // Everything can be completed.
    const auto resume = (*store)->OpenIncarnation(frames_.identity());
    ASSERT_TRUE(resume.ok());
    acked.committed = *resume;
    const absl::Status rest = Work(store->get(), &acked);
    EXPECT_TRUE(rest.ok()) << rest;
    ExpectSound(store->get());
  }
};

struct Sweep {
  const char* name;
  FaultKind kind;
  FaultFileSystem::Unsynced unsynced;
};

class FaultSweep : public StoreFaultTest,
                   public ::testing::WithParamInterface<Sweep> {};

TEST_P(FaultSweep, EveryCallInTurn) {
  const uint64_t calls = CallsOfWork();
  ASSERT_GT(calls, 100u);
  for (uint64_t call = 1; call <= calls; ++call) {
    OneFault one;
    one.Run(call, GetParam().kind, GetParam().unsynced);
    if (HasFailure()) {
      FAIL() << GetParam().name << " at call " << call << " of " << calls;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Faults, FaultSweep,
    ::testing::Values(Sweep{"IoError", FaultKind::kIoError,
                            FaultFileSystem::Unsynced::kDropped},
                      Sweep{"NoSpace", FaultKind::kNoSpace,
                            FaultFileSystem::Unsynced::kDropped},
                      Sweep{"ShortWrite", FaultKind::kShortWrite,
                            FaultFileSystem::Unsynced::kDropped},
                      Sweep{"TornRename", FaultKind::kTornRename,
                            FaultFileSystem::Unsynced::kDropped},
                      Sweep{"CrashDropped", FaultKind::kCrash,
                            FaultFileSystem::Unsynced::kDropped},
                      Sweep{"CrashHalfKept", FaultKind::kCrash,
                            FaultFileSystem::Unsynced::kHalfKept}),
    [](const auto& info) { return std::string(info.param.name); });

// The process is killed, and then one read fails while the archive is opened,
// each in turn: the next open recovers it.
TEST_F(StoreFaultTest, WhatWasNotRecoveredIsNotCalledClosed) {
  const auto killed = [](const std::string&, const std::string&) {
    return FaultKind::kIoError;
  };
  {
    auto store = Open();
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->Commit(frames_.All()).ok());
    fs_.FailWhile(killed);
  }
  std::set<std::string> refused;
  for (int nth = 0; nth < 40; ++nth) {
    int reads = 0;
    fs_.FailWhile([&](const std::string& op, const std::string&) {
      return op == "Read" && reads++ == nth ? FaultKind::kIoError
                                            : FaultKind::kNone;
    });
    {
      const auto store = Open();
      if (!store.ok()) refused.insert(fs_.faulty_call());
      fs_.FailWhile(killed);
    }
    fs_.FailWhile(nullptr);
    const auto index = OpenLevelDbIndex({"/d/index", 64 << 10, 1 << 20, &fs_});
    ASSERT_TRUE(index.ok()) << index.status();
    EXPECT_EQ(*(*index)->Get(keys::kClean), std::nullopt) << "read " << nth;
  }
  // These include the rows that recovery reads, and the files that it reads
  // first.
  EXPECT_GE(refused.size(), 5u);
}

// The disk fills up in the middle and is cleared: no restart, nothing lost.
TEST_F(StoreFaultTest, AFullDiskIsWaitedOut) {
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  const std::vector<FrameToStore> all = frames_.All();
  ASSERT_TRUE((*store)->Commit({all[0]}).ok());
  for (size_t i = 1; i < all.size(); ++i) {
    // Room for a part of the next frame, a different part each time.
    fs_.SetCapacity(fs_.used_bytes() + i * 137 % 4300);
    absl::Status status = (*store)->Commit({all[i]});
    for (int tries = 0; !status.ok() && tries < 3; ++tries) {
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      status = (*store)->Commit({all[i]});
    }
    fs_.SetCapacity(UINT64_MAX);
    if (!status.ok()) status = (*store)->Commit({all[i]});
    ASSERT_TRUE(status.ok()) << "frame " << i << ": " << status;
  }
  ExpectHas(store->get(), all.size(), false);
  ExpectSound(store->get());
  store->reset();
  store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  ExpectHas(store->get(), all.size(), false);
  ExpectSound(store->get());
}

// The reserve of a small disk is smaller than what is written between two
// readings of the free space of a large one.
TEST_F(StoreFaultTest, TheReserveIsLeftFreeAndARunCanBeDeletedThere) {
  constexpr uint64_t kMiB = 1 << 20;
  fs_.SetCapacity(12 * kMiB);
  auto store = Open(/*min_free_bytes=*/4 * kMiB);
  ASSERT_TRUE(store.ok()) << store.status();
  Frames frames(MakeIdentity("large", 0, 1));
  for (int64_t step = 0; step < 12; ++step) {
    frames.AddStep(step, std::string(kMiB, static_cast<char>('a' + step)),
                   kMiB / 4);
  }
  const std::vector<FrameToStore> all = frames.All();
  size_t committed = 0;
  absl::Status status;
  while (status.ok() && committed < all.size()) {
    status = (*store)->Commit({all[committed]});
    if (status.ok()) ++committed;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_GE(committed, 20u);
  EXPECT_GE(*fs_.FreeBytes("/d"), 7 * kMiB / 2);
  clock_.Advance(absl::Hours(1));
  const auto deleted = (*store)->Delete({"large", {}, {}});
  ASSERT_TRUE(deleted.ok()) << deleted.status();
  EXPECT_GE(*fs_.FreeBytes("/d"), 9 * kMiB);
  ASSERT_TRUE((*store)->OpenIncarnation(frames_.identity()).ok());
  EXPECT_TRUE((*store)->Commit({frames_.All()[0]}).ok());
}

// Found by tests/sim, seed 239: all ranks had disconnected while the disk was
// full. Each that returned was refused before it could write, and only a write
// opened the index again.
TEST_F(StoreFaultTest, WhoComesWhenThereIsRoomAgainOpensTheIndex) {
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  const std::vector<FrameToStore> all = frames_.All();
  ASSERT_TRUE((*store)->Commit({all[0]}).ok());
  fs_.SetCapacity(fs_.used_bytes());
  // The first write closes it, the next one cannot open it.
  for (int tries = 0; tries < 3; ++tries)
    EXPECT_TRUE(absl::IsResourceExhausted((*store)->Commit({all[1]})));
  EXPECT_TRUE(absl::IsResourceExhausted(
      (*store)
          ->OpenIncarnation(testing::MakeIdentity("other", 0, 77))
          .status()));
  fs_.SetCapacity(UINT64_MAX);
  EXPECT_TRUE(
      (*store)->OpenIncarnation(testing::MakeIdentity("other", 0, 77)).ok());
}

// Found by tests/sim, seed 64: the run counted the records of a failed commit,
// because its row could not be read again from a closed index.
TEST_F(StoreFaultTest, WhatFailedIsNotCountedWhenTheIndexIsClosed) {
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  const std::vector<FrameToStore> all = frames_.All();
  ASSERT_TRUE((*store)->Commit({all[0]}).ok());
  fs_.SetCapacity(fs_.used_bytes());
  for (int tries = 0; tries < 3; ++tries)
    EXPECT_TRUE(absl::IsResourceExhausted((*store)->Commit(all)));
  fs_.SetCapacity(UINT64_MAX);
  ASSERT_TRUE((*store)->Commit(all).ok());
  ExpectHas(store->get(), all.size(), false);
  ExpectSound(store->get());
}

// Segments are rewritten during ingest: while the disk syncs the copies, frames
// are committed, and while it syncs anything, offers of payloads are answered.
// (LevelDB blocks writes during its own syncs.)
TEST_F(StoreFaultTest, IngestDoesNotWaitForTheSyncOfACompaction) {
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->Commit(frames_.All()).ok());
  clock_.Advance(absl::Hours(1));
  DeleteOptions deletion{"run", std::set<int64_t>{0, 2, 3}, {}};
  deletion.reclaim = false;
  ASSERT_TRUE((*store)->Delete(deletion).ok());
  const std::string kept = PayloadOf(1);
  int probes = 0;
  std::vector<std::thread> late;
  fs_.SetDelay([&](const std::string& op) {
    if (op != "Sync" || !late.empty()) return;
    auto* const committed = new MonotonicEvent;
    std::thread ingest([&, number = ++probes, committed] {
      if (number == 1) {
        Frames frames(MakeIdentity("other", 0, 100));
        frames.AddBatch(0)->add_records()->mutable_call()->set_entry("e");
        EXPECT_TRUE((*store)->OpenIncarnation(frames.identity()).ok());
        EXPECT_TRUE((*store)->Commit(frames.All()).ok());
      }
      EXPECT_TRUE((*store)->KeepPayload("run", DigestOf(kept), kept.size()));
      committed->Set();
    });
    if (committed->WaitFor(absl::Seconds(60))) {
      ingest.join();
      delete committed;
    } else {
      late.push_back(std::move(ingest));
    }
  });
  const auto garbage = (*store)->CollectGarbage({});
  fs_.SetDelay(nullptr);
  for (std::thread& thread : late) thread.join();
  ASSERT_TRUE(garbage.ok()) << garbage.status();
  EXPECT_GT(garbage->bytes_copied, 0u);
  EXPECT_GE(probes, 2);
  EXPECT_TRUE(late.empty()) << "something waited for a sync";
  ExpectSound(store->get());
}

}  // namespace
}  // namespace rankprobe
