// SPDX-License-Identifier: Apache-2.0
// Freeing of a collector's own disk: only what is in the store, according
// to the store itself, and all of it.
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "collector/sealed/sealer.h"
#include "collector/sealed/testing/whole_steps.h"

namespace rankprobe {
namespace {

using testing::AddWholeStep;
using testing::FaultObjectStore;
using testing::Frames;
using testing::MakeIdentity;
using testing::RandomBytes;
using testing::SealerTest;

// A store that reports a successful put of an entry, but has lost it or has
// other bytes.
class LyingObjectStore : public FaultObjectStore {
 public:
  enum class Lie { kNone, kLosesEntries, kHasOtherBytes };
  Lie lie = Lie::kNone;

  absl::Status Put(const std::string& key, absl::string_view bytes,
                   PutMode mode) override {
    if (lie == Lie::kNone || !absl::StrContains(key, "/log/"))
      return FaultObjectStore::Put(key, bytes, mode);
    if (lie == Lie::kHasOtherBytes)
      (*mutable_objects())[key] = std::string(bytes.substr(0, 20));
    return absl::OkStatus();
  }
};

class Freeing : public SealerTest {
 protected:
  static SealerOptions KeepsThree() {
    SealerOptions options;
    options.free_stored = true;
    options.keep_steps = 3;
    return options;
  }
  static std::set<int64_t> Kept(Store* store) {
    std::set<int64_t> steps;
    const auto infos = store->ListSteps("run");
    for (const v1::StepInfo& info : *infos)
      if (!info.deleted()) steps.insert(info.step());
    return steps;
  }
  static std::set<int64_t> Steps(int64_t first, int64_t last) {
    std::set<int64_t> steps;
    for (int64_t step = first; step <= last; ++step) steps.insert(step);
    return steps;
  }
  static bool AnyIsStored(const Sealer& sealer, Store* store) {
    const auto infos = store->ListSteps("run");
    for (const v1::StepInfo& info : *infos)
      if (sealer.IsStored("run", info)) return true;
    return false;
  }
};

TEST_F(Freeing, AnEntryThatIsNotReadBackFreesNothing) {
  using Lie = LyingObjectStore::Lie;
  const std::unique_ptr<Store> store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 7));
  for (int64_t step = 0; step < 10; ++step)
    AddWholeStep(&frames, step, RandomBytes(step, 1000));
  Commit(store.get(), frames);
  const Seen all = See(store.get(), "run");
  for (const Lie lie : {Lie::kHasOtherBytes, Lie::kLosesEntries}) {
    LyingObjectStore objects;
    SealerOptions options = KeepsThree();
    options.directory = absl::StrCat(root_, "/sealing", static_cast<int>(lie));
    auto sealer = OpenSealer(store.get(), &objects, options);
    objects.lie = lie;
    Sealer::Report report;
    for (int pass = 0; pass < 2; ++pass)
      EXPECT_FALSE(SealAll(sealer.get(), &report).ok());
    EXPECT_FALSE(report.fenced);
    EXPECT_EQ(report.sets, 0u);
    EXPECT_EQ(Kept(store.get()), Steps(0, 9));
    EXPECT_FALSE(AnyIsStored(*sealer, store.get()));
    if (lie == Lie::kHasOtherBytes) continue;
    // Nor has it noted that it was stored.
    objects.lie = Lie::kNone;
    sealer = OpenSealer(store.get(), &objects, options);
    ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
    EXPECT_EQ(report.steps, 10u);
    EXPECT_EQ(Kept(store.get()), Steps(7, 9));
    SealedReader reader(&objects);
    EXPECT_EQ(See(&reader, "run"), all);
  }
}

// Records that arrived after a step was stored are in no set yet.
TEST_F(Freeing, AStepThatHasMoreThanIsStoredStays) {
  const std::unique_ptr<Store> store = OpenStore();
  FaultObjectStore objects;
  Frames frames(MakeIdentity("run", 0, 7));
  testing::AddStep(&frames, 0, {0}, /*end=*/3);
  const size_t early = frames.size();
  testing::AddStep(&frames, 0, {1, 2}, /*end=*/0);
  for (int64_t step = 1; step < 10; ++step)
    AddWholeStep(&frames, step, RandomBytes(step, 1000));
  ASSERT_TRUE(store->OpenIncarnation(frames.identity()).ok());
  ASSERT_TRUE(store->Commit(frames.Range(0, early)).ok());
  const auto sealer = OpenSealer(store.get(), &objects, KeepsThree());
  // Like a step that receives nothing more.
  Sealer::Report report;
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  clock_.Advance(absl::Minutes(11));
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  ASSERT_EQ(report.steps, 1u);
  ASSERT_TRUE(store->Commit(frames.Range(early, frames.size())).ok());
  const Seen all = See(store.get(), "run");
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  std::set<int64_t> kept = Steps(7, 9);
  kept.insert(0);
  EXPECT_EQ(Kept(store.get()), kept);
  clock_.Advance(absl::Minutes(11));
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.addenda, 1u);
  SealedReader reader(&objects);
  EXPECT_EQ(See(&reader, "run"), all);
}

// A rank that was behind sends a step while the same step of others is being
// stored.
TEST_F(Freeing, AStepThatComesMeanwhileStays) {
  const std::unique_ptr<Store> store = OpenStore();
  FaultObjectStore objects;
  Frames early(MakeIdentity("run", 0, 7)), late(MakeIdentity("run", 1, 8));
  for (int64_t step = 0; step < 10; ++step) {
    AddWholeStep(&early, step, RandomBytes(step, 1000));
    AddWholeStep(&late, step, RandomBytes(100 + step, 1000));
  }
  Commit(store.get(), early);
  const auto sealer = OpenSealer(store.get(), &objects, KeepsThree());
  bool has_come = false;
  objects.before_commit = [&](const std::string&) {
    if (!std::exchange(has_come, true)) Commit(store.get(), late);
  };
  Sealer::Report report;
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  ASSERT_GT(report.freed_steps, 0u);
  EXPECT_EQ(Kept(store.get()), Steps(0, 9));
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(Kept(store.get()), Steps(7, 9));
  SealedReader reader(&objects);
  EXPECT_EQ(See(&reader, "run").size(), 20u);
}

// A payload that arrives late is stored late; until then its step is incomplete
// there.
TEST_F(Freeing, AStepWhosePayloadIsNotThereStays) {
  const std::unique_ptr<Store> store = OpenStore();
  FaultObjectStore objects;
  Frames frames(MakeIdentity("run", 0, 7));
  const std::string late = RandomBytes(77, 1000);
  AddWholeStep(&frames, 0, late, /*with_payload=*/false);
  for (int64_t step = 1; step < 10; ++step)
    AddWholeStep(&frames, step, RandomBytes(step, 1000));
  Commit(store.get(), frames);
  auto sealer = OpenSealer(store.get(), &objects, KeepsThree());
  Sealer::Report report;
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  clock_.Advance(absl::Minutes(11));
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.steps, 10u);
  std::set<int64_t> kept = Steps(7, 9);
  kept.insert(0);
  EXPECT_EQ(Kept(store.get()), kept);
  Frames other(MakeIdentity("run", 1, 8));
  other.AddPayload(late);
  Commit(store.get(), other);
  // The store is unreachable when it has arrived.
  objects.FailFrom(1, FaultObjectStore::Fault::kBefore);
  EXPECT_FALSE(SealAll(sealer.get(), &report).ok());
  EXPECT_EQ(Kept(store.get()), kept);
  objects.FailFrom(0, FaultObjectStore::Fault::kBefore);
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  SealedReader reader(&objects);
  EXPECT_TRUE(reader.HasPayload("run", testing::DigestOf(late), late.size()));
  EXPECT_EQ(Kept(store.get()), Steps(7, 9)) << "nothing is missing any more";
}

// A missing payload of a step is still missing after records have been added to
// the step, and the next process looks for it.
TEST_F(Freeing, AnAddendumDoesNotForgetWhatIsMissing) {
  const std::unique_ptr<Store> store = OpenStore();
  FaultObjectStore objects;
  Frames frames(MakeIdentity("run", 0, 7));
  const std::string late = RandomBytes(77, 1000);
  v1::RecordBatch* const batch = frames.AddBatch(0);
  batch->add_records()->mutable_step_begin()->set_task("tensor");
  testing::AddCall(1, "call1", late, batch);
  v1::Record* const end = batch->add_records();
  end->set_order(3);
  end->mutable_step_end()->set_call_phases(2);
  end->mutable_step_end()->set_payloads(1);
  const size_t early = frames.size();
  testing::AddStep(&frames, 0, {2}, /*end=*/0);
  for (int64_t step = 1; step < 10; ++step)
    AddWholeStep(&frames, step, RandomBytes(step, 1000));
  ASSERT_TRUE(store->OpenIncarnation(frames.identity()).ok());
  ASSERT_TRUE(store->Commit(frames.Range(0, early)).ok());
  auto sealer = OpenSealer(store.get(), &objects, KeepsThree());
  Sealer::Report report;
  const auto seal_when_quiet = [&] {
    ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
    clock_.Advance(absl::Minutes(11));
    ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  };
  seal_when_quiet();
  ASSERT_EQ(report.steps, 1u);
  ASSERT_TRUE(store->Commit(frames.Range(early, frames.size())).ok());
  seal_when_quiet();
  EXPECT_EQ(report.addenda, 1u);
  std::set<int64_t> kept = Steps(7, 9);
  kept.insert(0);
  EXPECT_EQ(Kept(store.get()), kept);
  // The payload only arrives after the end of the process.
  sealer = OpenSealer(store.get(), &objects, KeepsThree());
  Frames other(MakeIdentity("run", 1, 8));
  other.AddPayload(late);
  Commit(store.get(), other);
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  SealedReader reader(&objects);
  EXPECT_TRUE(reader.HasPayload("run", testing::DigestOf(late), late.size()));
}

}  // namespace
}  // namespace rankprobe
