// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/sealer.h"

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "collector/sealed/bucket_upkeep.h"
#include "collector/sealed/testing/whole_steps.h"

namespace rankprobe {
namespace {

using testing::AddWholeStep;
using testing::FaultObjectStore;
using testing::Frames;
using testing::MakeIdentity;
using testing::RandomBytes;
using testing::SealerTest;

void AddBegin(v1::RecordBatch* batch, uint64_t order) {
  v1::Record* const record = batch->add_records();
  record->set_order(order);
  record->mutable_step_begin()->set_task("statistics");
}

// Adds a step that has begun, with one call; it ends if `ends`.
void AddOpenStep(Frames* frames, int64_t step, bool ends) {
  v1::RecordBatch* const batch = frames->AddBatch(step);
  AddBegin(batch, 0);
  v1::Record* const call = batch->add_records();
  call->set_order(1);
  call->mutable_call()->set_entry("call");
  if (!ends) return;
  v1::Record* const end = batch->add_records();
  end->set_order(2);
  end->mutable_step_end()->set_call_phases(1);
}

class Sealing : public SealerTest {
 protected:
  FaultObjectStore objects_;
};

TEST_F(Sealing, StoresWhatHasEndedAndNothingElse) {
  const std::unique_ptr<Store> store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 7));
  AddWholeStep(&frames, 1, RandomBytes(1, 3 << 20));
  AddOpenStep(&frames, 2, /*ends=*/false);
  Commit(store.get(), frames);
  const auto sealer = OpenSealer(store.get(), &objects_);
  Sealer::Report report;
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.sets, 1u);
  EXPECT_EQ(report.steps, 1u);
  SealedReader reader(&objects_);
  const auto all = See(store.get(), "run"), sealed = See(&reader, "run");
  ASSERT_EQ(sealed.size(), 1u);
  EXPECT_EQ(sealed.begin()->second, all.begin()->second);
  const auto runs = reader.ListRuns();
  ASSERT_TRUE(runs.ok()) << runs.status();
  ASSERT_EQ(runs->size(), 1u);
  EXPECT_EQ((*runs)[0].run(), "run");
  EXPECT_EQ((*runs)[0].stored_payload_bytes(), uint64_t{3} << 20);
  // Nothing has arrived since.
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.sets, 1u);
}

// The log has no entry for a process that has only continued.
TEST_F(Sealing, AStepThatHasOnlyBegunMakesNoSet) {
  const std::unique_ptr<Store> store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 7));
  AddWholeStep(&frames, 1, RandomBytes(1, 1000));
  const size_t first = frames.size();
  AddOpenStep(&frames, 2, /*ends=*/false);
  ASSERT_TRUE(store->OpenIncarnation(frames.identity()).ok());
  ASSERT_TRUE(store->Commit(frames.Range(0, first)).ok());
  const auto sealer = OpenSealer(store.get(), &objects_);
  Sealer::Report report;
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.sets, 1u);
  ASSERT_TRUE(store->Commit(frames.Range(first, frames.size())).ok());
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.sets, 1u);
}

TEST_F(Sealing, TakesAnUnfinishedStepWhenNothingComesAnyMore) {
  const std::unique_ptr<Store> store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 7));
  AddOpenStep(&frames, 2, /*ends=*/false);
  Commit(store.get(), frames);
  const auto sealer = OpenSealer(store.get(), &objects_);
  Sealer::Report report;
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  clock_.Advance(absl::Minutes(9));
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.sets, 0u);
  clock_.Advance(absl::Minutes(2));
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.sets, 1u);
  SealedReader reader(&objects_);
  EXPECT_FALSE((*reader.ListSteps("run"))[0].complete());
}

// Late records become an addendum, at their place among the records.
TEST_F(Sealing, MakesAddendaOfWhatComesLate) {
  const std::unique_ptr<Store> store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 7));
  v1::RecordBatch* const early = frames.AddBatch(5);
  AddBegin(early, 0);
  v1::Record* const end = early->add_records();
  end->set_order(3);
  end->mutable_step_end()->set_call_phases(0);
  v1::RecordBatch* const late = frames.AddBatch(5);
  for (const uint64_t order : {1, 2}) {
    v1::Record* const call = late->add_records();
    call->set_order(order);
    call->mutable_call()->set_entry(absl::StrCat("late", order));
  }
  ASSERT_TRUE(store->OpenIncarnation(frames.identity()).ok());
  ASSERT_TRUE(store->Commit(frames.Range(0, 1)).ok());
  auto sealer = OpenSealer(store.get(), &objects_);
  Sealer::Report report;
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.sets, 1u);
  SealedReader reader(&objects_);
  EXPECT_EQ(See(&reader, "run").begin()->second.size(), 3u);
  ASSERT_TRUE(store->Commit(frames.Range(1, 2)).ok());
  // Sealed steps are known after a restart, too.
  sealer = OpenSealer(store.get(), &objects_);
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  clock_.Advance(absl::Minutes(11));
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.sets, 2u);
  EXPECT_EQ(report.addenda, 1u);
  EXPECT_EQ(See(&reader, "run"), See(store.get(), "run"));
  EXPECT_EQ(See(&reader, "run").begin()->second.size(), 5u);
}

TEST_F(Sealing, WaitsForPayloadsAndBringsThoseThatComeLate) {
  const std::unique_ptr<Store> store = OpenStore();
  const std::string data = RandomBytes(3, 5000);
  Frames frames(MakeIdentity("run", 0, 7));
  AddWholeStep(&frames, 1, data, /*with_payload=*/false);
  Commit(store.get(), frames);
  auto sealer = OpenSealer(store.get(), &objects_);
  Sealer::Report report;
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.sets, 0u);
  clock_.Advance(absl::Minutes(11));
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.sets, 1u);
  SealedReader reader(&objects_);
  EXPECT_EQ(See(&reader, "run").begin()->second[3], "no payload");
  Frames other(MakeIdentity("run", 1, 8));
  other.AddPayload(data);
  Commit(store.get(), other);
  // Known after a restart, too.
  sealer = OpenSealer(store.get(), &objects_);
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.sets, 2u);
  EXPECT_EQ(See(&reader, "run"), See(store.get(), "run"));
}

TEST_F(Sealing, StoresAPayloadOfSeveralStepsOnce) {
  const std::unique_ptr<Store> store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 7));
  const std::string data = RandomBytes(1, 1 << 20);
  AddWholeStep(&frames, 1, data);
  AddWholeStep(&frames, 2, data, false);
  Commit(store.get(), frames);
  const auto sealer = OpenSealer(store.get(), &objects_);
  Sealer::Report report;
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_LT(report.bytes, (uint64_t{1} << 20) + 10000);
  EXPECT_EQ(report.steps, 2u);
}

TEST_F(Sealing, CutsSetsAtTheirSize) {
  const std::unique_ptr<Store> store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 7));
  for (int64_t step = 0; step < 6; ++step)
    AddWholeStep(&frames, step, RandomBytes(step, 600000));
  Commit(store.get(), frames);
  SealerOptions options;
  options.block_bytes = 1 << 20;
  const auto sealer = OpenSealer(store.get(), &objects_, options);
  Sealer::Report report;
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.sets, 3u);
  SealedReader reader(&objects_);
  EXPECT_EQ(See(&reader, "run"), See(store.get(), "run"));
}

// Losses that belong to no step are stored with the next set, or in a set of
// their own.
TEST_F(Sealing, TellsOfWhatAProcessCouldNotDeliver) {
  const std::unique_ptr<Store> store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 7));
  AddOpenStep(&frames, 1, true);
  Commit(store.get(), frames);
  const auto sealer = OpenSealer(store.get(), &objects_);
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  v1::Undelivered undelivered;
  undelivered.set_records(9);
  ASSERT_TRUE(store->NoteUndelivered(frames.identity(), undelivered).ok());
  Sealer::Report report;
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.sets, 1u);
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.sets, 1u);
  SealedReader reader(&objects_);
  ASSERT_TRUE(reader.ListSteps("run").ok());
  uint64_t records = 0;
  ASSERT_TRUE(reader
                  .ForEachIncarnation("run",
                                      [&](const v1::IncarnationRow& row) {
                                        records += row.undelivered().records();
                                        EXPECT_EQ(row.secret_sha256(), "");
                                        EXPECT_EQ(row.principal(), "");
                                      })
                  .ok());
  EXPECT_EQ(records, 9u);
}

TEST_F(Sealing, PutsTwoCollectorsTogether) {
  const std::unique_ptr<Store> store = OpenStore();
  auto other = Store::Open(testing::OptionsAt(root_ + "/other"),
                           file_system_.get(), &clock_);
  ASSERT_TRUE(other.ok());
  for (int64_t rank = 0; rank < 4; ++rank) {
    Frames frames(MakeIdentity("run", rank, 70 + static_cast<uint64_t>(rank)));
    AddWholeStep(&frames, 1, RandomBytes(rank / 2, 5000));
    Commit(rank % 2 == 0 ? store.get() : other->get(), frames);
  }
  const auto one = OpenSealer(store.get(), &objects_);
  SealerOptions options;
  options.directory = root_ + "/other/sealing";
  const auto two = OpenSealer(other->get(), &objects_, options);
  EXPECT_NE(one->shard(), two->shard());
  ASSERT_EQ(SealAll(one.get()), absl::OkStatus());
  ASSERT_EQ(SealAll(two.get()), absl::OkStatus());
  SealedReader reader(&objects_);
  auto both = See(store.get(), "run");
  both.merge(See(other->get(), "run"));
  EXPECT_EQ(See(&reader, "run"), both);
  EXPECT_EQ(both.size(), 4u);
}

// A data directory was copied: the second collector that stores a set of the
// same number is fenced, and nothing of the first one's is touched.
TEST_F(Sealing, FencesTheCopyOfACollector) {
  std::unique_ptr<Store> store = OpenStore();
  const auto first = OpenSealer(store.get(), &objects_);
  const auto copy =
      OpenSealer(store.get(), &objects_, {.directory = root_ + "/copy"});
  // The copy has the same name.
  std::filesystem::copy(root_ + "/data/sealing/shard", root_ + "/copy/shard",
                        std::filesystem::copy_options::overwrite_existing);
  const auto second =
      OpenSealer(store.get(), &objects_, {.directory = root_ + "/copy"});
  EXPECT_EQ(first->shard(), second->shard());
  Frames frames(MakeIdentity("run", 0, 7));
  AddWholeStep(&frames, 1, RandomBytes(1, 5000));
  Commit(store.get(), frames);
  // Both have found an empty log.
  bool raced = false;
  objects_.before_commit = [&](const std::string&) {
    if (std::exchange(raced, true)) return;
    Frames more(MakeIdentity("run", 1, 8));
    AddWholeStep(&more, 1, RandomBytes(2, 5000));
    Commit(store.get(), more);
    EXPECT_EQ(SealAll(second.get()), absl::OkStatus());
  };
  Sealer::Report report;
  const absl::Status fenced = SealAll(first.get(), &report);
  EXPECT_TRUE(absl::IsFailedPrecondition(fenced)) << fenced;
  EXPECT_TRUE(report.fenced);
  const auto before = objects_.objects();
  Sealer::Report again;
  EXPECT_TRUE(absl::IsFailedPrecondition(SealAll(first.get(), &again)));
  EXPECT_TRUE(again.fenced);
  EXPECT_TRUE(objects_.objects() == before);
  SealedReader reader(&objects_);
  EXPECT_EQ(See(&reader, "run").size(), 2u);
}

// For example a bucket that does not exist yet: the same status code, but no
// fence.
TEST_F(Sealing, IsNotFencedByAStoreThatRefuses) {
  const std::unique_ptr<Store> store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 7));
  AddWholeStep(&frames, 1, RandomBytes(1, 1000));
  Commit(store.get(), frames);
  const auto sealer = OpenSealer(store.get(), &objects_);
  // The calls before it list the log, and put the name and the pack.
  for (const uint64_t call : {1, 2, 3}) {
    objects_.FailOnce(call, absl::FailedPreconditionError("NoSuchBucket"));
    Sealer::Report report;
    const absl::Status refused = SealAll(sealer.get(), &report);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_FALSE(report.fenced);
    EXPECT_EQ(report.sets, 0u);
  }
  Sealer::Report report;
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.sets, 1u);
  SealedReader reader(&objects_);
  EXPECT_EQ(See(&reader, "run"), See(store.get(), "run"));
}

TEST_F(Sealing, FreesOnlyWhatIsStored) {
  const std::unique_ptr<Store> store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 7));
  for (int64_t step = 0; step < 10; ++step)
    AddWholeStep(&frames, step, RandomBytes(step, 1000));
  Commit(store.get(), frames);
  const auto all = See(store.get(), "run");
  SealerOptions options;
  options.free_stored = true;
  options.keep_steps = 3;
  const auto sealer = OpenSealer(store.get(), &objects_, options);
  const auto kept = [&] {
    std::set<int64_t> steps;
    const auto infos = store->ListSteps("run");
    for (const v1::StepInfo& info : *infos) {
      if (!info.deleted()) steps.insert(info.step());
    }
    return steps;
  };
  // The store is unreachable from each call on: nothing is freed before an
  // entry that names it has been read back.
  objects_.before_commit = [&](const std::string&) {
    EXPECT_EQ(kept().size(), 10u);
  };
  Sealer::Report report;
  absl::Status status;
  for (uint64_t call = 1;; ++call) {
    ASSERT_LT(call, 40u);
    objects_.FailFrom(call, FaultObjectStore::Fault::kAfter);
    status = SealAll(sealer.get(), &report);
    objects_.FailFrom(0, FaultObjectStore::Fault::kAfter);
    if (status.ok()) break;
    EXPECT_EQ(kept().size(), 10u) << call;
    EXPECT_EQ(report.freed_steps, 0u);
  }
  EXPECT_EQ(kept(), (std::set<int64_t>{7, 8, 9}));
  EXPECT_EQ(report.freed_steps, 7u);
  SealedReader reader(&objects_);
  EXPECT_EQ(See(&reader, "run"), all);
  // Freed steps are not sealed again as deleted.
  const auto before = objects_.objects().size();
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  EXPECT_EQ(objects_.objects().size(), before);
}

// Ten minutes, by the clock of the leaf: ranks continue, all their records stay
// on its disk, and are stored once when the store returns.
TEST_F(Sealing, KeepsAllWhileTheStoreIsAwayForTenMinutes) {
  const std::unique_ptr<Store> store = OpenStore();
  SealerOptions options;
  options.free_stored = true;
  options.keep_steps = 3;
  options.quiet_time = absl::Minutes(1);
  const auto sealer = OpenSealer(store.get(), &objects_, options);
  constexpr int64_t kSteps = 60;
  Frames frames(MakeIdentity("run", 0, 7));
  ASSERT_TRUE(store->OpenIncarnation(frames.identity()).ok());
  // It has opened its log before the store becomes unreachable.
  AddWholeStep(&frames, 0, RandomBytes(0, 1000));
  ASSERT_TRUE(store->Commit(frames.Range(0, frames.size())).ok());
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  const auto stored = objects_.objects();
  objects_.FailFrom(1, FaultObjectStore::Fault::kBefore);
  const int64_t began = clock_.MonotonicNanos();
  for (int64_t step = 1; step <= kSteps; ++step) {
    const size_t first = frames.size();
    AddWholeStep(&frames, step, RandomBytes(step, 1000));
    ASSERT_TRUE(store->Commit(frames.Range(first, frames.size())).ok());
    Sealer::Report report;
    EXPECT_FALSE(SealAll(sealer.get(), &report).ok());
    EXPECT_FALSE(report.fenced);
    EXPECT_EQ(report.freed_steps, 0u);
    clock_.Advance(absl::Seconds(10));
  }
  EXPECT_EQ(absl::Nanoseconds(clock_.MonotonicNanos() - began),
            absl::Minutes(10));
  EXPECT_EQ(objects_.objects(), stored);
  const auto all = See(store.get(), "run");
  ASSERT_EQ(all.size(), static_cast<size_t>(kSteps) + 1);
  for (const auto& [id, lines] : all)
    EXPECT_EQ(std::count(lines.begin(), lines.end(), "deleted"), 0);

  objects_.FailFrom(0, FaultObjectStore::Fault::kBefore);
  Sealer::Report report;
  ASSERT_EQ(SealAll(sealer.get(), &report), absl::OkStatus());
  EXPECT_EQ(report.steps, static_cast<uint64_t>(kSteps));
  EXPECT_EQ(report.addenda, 0u);
  EXPECT_EQ(report.freed_steps, static_cast<uint64_t>(kSteps + 1 - 3));
  SealedReader reader(&objects_);
  EXPECT_EQ(See(&reader, "run"), all);
}

TEST_F(Sealing, NoticesAHoleInALog) {
  const std::unique_ptr<Store> store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 7));
  for (int64_t step = 0; step < 4; ++step)
    AddWholeStep(&frames, step, RandomBytes(step, 1000));
  Commit(store.get(), frames);
  SealerOptions options;
  options.block_steps = 1;
  const auto sealer = OpenSealer(store.get(), &objects_, options);
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  objects_.mutable_objects()->erase(
      sealed::LogKey(sealed::RunKey("run"), sealer->shard(), 2));
  SealedReader reader(&objects_);
  const auto steps = reader.ListSteps("run");
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(steps->size(), 3u) << "the others are there";
  const std::vector<std::string> faults = reader.Faults("run");
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].find("entry 2 of the log"), std::string::npos)
      << faults[0];
}

// Calls `during` once, in the next request.
class WatchedObjectStore : public FaultObjectStore {
 public:
  std::function<void()> during;

  absl::StatusOr<ObjectList> List(const std::string& prefix,
                                  const std::string& start_after,
                                  size_t most) override {
    Watch();
    return FaultObjectStore::List(prefix, start_after, most);
  }
  absl::StatusOr<ObjectTail> GetTail(const std::string& key,
                                     uint64_t bytes) override {
    Watch();
    return FaultObjectStore::GetTail(key, bytes);
  }

 private:
  void Watch() {
    if (during) std::exchange(during, nullptr)();
  }
};

TEST_F(Sealing, ARequestOnItsWayHasOthersWaitForNothing) {
  const std::unique_ptr<Store> store = OpenStore();
  WatchedObjectStore objects;
  const auto sealer = OpenSealer(store.get(), &objects);
  const std::string first = RandomBytes(1, 1000), second = RandomBytes(2, 1000);
  Frames frames(MakeIdentity("run", 0, 7));
  AddWholeStep(&frames, 1, first);
  Commit(store.get(), frames);
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  SealedReader reader(&objects);
  ASSERT_EQ(See(&reader, "run").size(), 1u);
  const size_t before = frames.size();
  AddWholeStep(&frames, 2, second);
  ASSERT_TRUE(store->Commit(frames.Range(before, frames.size())).ok());
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  // Cached data is read while the request waits for its answer.
  std::vector<std::thread> others;
  int read = 0;
  const auto other = [&] {
    const auto done = std::make_shared<absl::Notification>();
    others.emplace_back([&, done] {
      StepKey key{.run = "run", .step = 1, .incarnation = 7};
      const auto take = [](const auto&) { return absl::OkStatus(); };
      EXPECT_TRUE(reader.ForEachRecord(key, take).ok());
      EXPECT_TRUE(
          reader
              .ReadPayload("run", testing::DigestOf(first), first.size(), take)
              .ok());
      done->Notify();
    });
    read += done->WaitForNotificationWithTimeout(absl::Seconds(60)) ? 1 : 0;
  };
  objects.during = other;
  EXPECT_EQ(reader.ListSteps("run")->size(), 2u);
  EXPECT_EQ(read, 1);
  objects.during = other;
  EXPECT_TRUE(
      reader.HasPayload("run", testing::DigestOf(second), second.size()));
  EXPECT_EQ(read, 2);
  for (std::thread& thread : others) thread.join();
}

TEST_F(Sealing, AReaderRefusesDeletionAndARootDeletes) {
  SealedReader reader(&objects_);
  BucketUpkeep refusing(&objects_, &clock_, BucketUpkeep::Deletion::kRefused);
  DeleteOptions options;
  options.run = "run";
  const absl::Status refused = refusing.Delete(options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_NE(refused.message().find("objects in memory is read-only"),
            std::string::npos)
      << refused;
  BucketUpkeep deleting(&objects_, &clock_, BucketUpkeep::Deletion::kAllowed);
  EXPECT_TRUE(absl::IsNotFound(deleting.Delete(options).status()));
  EXPECT_TRUE(absl::IsNotFound(reader.ListSteps("run").status()));
  EXPECT_TRUE(reader.ListRuns()->empty());
}

}  // namespace
}  // namespace rankprobe
