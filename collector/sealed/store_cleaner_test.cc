// SPDX-License-Identifier: Apache-2.0
// Removal from a store by a cleaner, and what it never removes: with
// concurrent readers, sealing collectors and other cleaners.
#include "collector/sealed/store_cleaner.h"

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collector/sealed/plan_log.h"
#include "collector/sealed/store_deletion.h"
#include "collector/sealed/testing/whole_steps.h"

namespace rankprobe {
namespace {

using testing::AddWholeStep;
using testing::FaultObjectStore;
using testing::Frames;
using testing::MakeIdentity;
using testing::RandomBytes;
using testing::SealerTest;

class Cleaning : public SealerTest {
 protected:
  static CleanOptions Options() {
    CleanOptions options;
    options.grace = absl::Hours(1);
    return options;
  }
  absl::Status Clean(StoreCleaner* cleaner, CleanReport* report = nullptr) {
    CleanReport own;
    return cleaner->Clean([] { return false; },
                          report == nullptr ? &own : report);
  }
  // Seals steps FIRST to LAST of `run`, each with its own payload and a shared
  // one.
  void Record(Store* store, const std::string& run, int64_t first, int64_t last,
              uint64_t incarnation = 7) {
    Frames frames(MakeIdentity(run, 0, incarnation));
    for (int64_t step = first; step <= last; ++step)
      AddWholeStep(&frames, step, RandomBytes(step, 4000));
    Commit(store, frames);
  }
  size_t Count(const std::string& what) const {
    size_t count = 0;
    for (const auto& [key, bytes] : objects_.objects())
      count += absl::StrContains(key, what) ? 1 : 0;
    return count;
  }

  FaultObjectStore objects_;
};

TEST_F(Cleaning, WhatIsDeletedGoesAfterTheGracePeriodAndNoSooner) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get(), "run", 0, 199);
  SealerOptions blocks;
  blocks.block_steps = 50;
  ASSERT_EQ(SealAll(OpenSealer(store.get(), &objects_, blocks).get()),
            absl::OkStatus());
  ASSERT_EQ(Count("/packs/"), 4u);
  std::set<int64_t> steps;
  for (int64_t step = 0; step < 60; ++step) steps.insert(step);
  ASSERT_EQ(
      DeleteFromStore(&objects_, "run", steps, clock_.Now(), "delete")->steps(),
      60u);
  SealedReader slow(&objects_);
  const Seen before = See(&slow, "run");
  StoreCleaner cleaner(Options(), &objects_, &clock_);
  CleanReport report;
  ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
  // The first set; the second one has steps that are not deleted.
  EXPECT_EQ(report.collected, 2u);
  clock_.Advance(absl::Minutes(59));
  ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
  EXPECT_EQ(report.objects_removed, 0u);
  EXPECT_EQ(Count("/packs/"), 4u);
  clock_.Advance(absl::Minutes(2));
  ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
  EXPECT_EQ(report.objects_removed, 2u);
  EXPECT_EQ(report.orphans_removed, 0u);
  EXPECT_GT(report.bytes_removed, 50u * 4000);
  EXPECT_EQ(Count("/packs/"), 3u);
  EXPECT_EQ(Count("/records/"), 3u);
  SealedReader fresh(&objects_);
  const Seen after = See(&fresh, "run");
  ASSERT_EQ(after.size(), 200u);
  for (int64_t step = 60; step < 200; ++step)
    EXPECT_EQ(after.at({step, 7}), before.at({step, 7})) << step;
  // There is nothing more to do.
  const uint64_t calls = objects_.calls();
  const auto all = objects_.objects();
  ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
  EXPECT_EQ(objects_.objects(), all);
  EXPECT_LT(objects_.calls() - calls, 30u);
}

// A payload that a step refers to stays, whichever set it is in.
TEST_F(Cleaning, APackThatAnotherStepRefersToStays) {
  const std::unique_ptr<Store> store = OpenStore();
  const std::string shared = RandomBytes(77, 5000);
  Frames frames(MakeIdentity("run", 0, 7));
  AddWholeStep(&frames, 1, shared);
  AddWholeStep(&frames, 2, RandomBytes(2, 5000));
  AddWholeStep(&frames, 500, shared, /*with_payload=*/false);
  Commit(store.get(), frames);
  SealerOptions blocks;
  blocks.block_steps = 1;
  ASSERT_EQ(SealAll(OpenSealer(store.get(), &objects_, blocks).get()),
            absl::OkStatus());
  SealedReader reader(&objects_);
  const Seen before = See(&reader, "run");
  ASSERT_TRUE(DeleteFromStore(&objects_, "run", std::set<int64_t>{1, 2},
                              clock_.Now(), "delete")
                  .ok());
  StoreCleaner cleaner(Options(), &objects_, &clock_);
  ASSERT_EQ(Clean(&cleaner), absl::OkStatus());
  clock_.Advance(absl::Hours(2));
  ASSERT_EQ(Clean(&cleaner), absl::OkStatus());
  EXPECT_EQ(Count("/packs/"), 1u);
  EXPECT_EQ(Count("/records/"), 1u);
  SealedReader fresh(&objects_);
  EXPECT_EQ(See(&fresh, "run").at({500, 7}), before.at({500, 7}));
}

// Even in a dedicated store, objects with names that no collector makes are not
// removed.
TEST_F(Cleaning, OnlyNamesThatACollectorMakesAreRemoved) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get(), "run", 0, 9);
  ASSERT_EQ(SealAll(OpenSealer(store.get(), &objects_).get()),
            absl::OkStatus());
  const std::string key = sealed::RunKey("run");
  const std::string orphan(32, 'a');
  const std::vector<std::string> theirs = {
      sealed::PackKey(key, "link/note.txt"),
      sealed::PackKey(key, "link/deep/" + orphan),
      sealed::PackKey(key, orphan + "0"),
      sealed::PackKey(key, orphan + ".bak"),
      sealed::PackKey(key, std::string(32, 'A')),
      sealed::RecordsKey(key, "README"),
      sealed::RunPrefix(key) + "extra/" + orphan,
      sealed::ShardKey(key, "thesis.tex"),
      "v1/plans/x/note.txt",
      "v1/plans/" + orphan + "/1",
      "v1/note.txt",
      "note.txt"};
  for (const std::string& name : theirs)
    ASSERT_TRUE(objects_.Put(name, "x", ObjectStore::PutMode::kReplace).ok());
  ASSERT_TRUE(objects_
                  .Put(sealed::PackKey(key, orphan), "x",
                       ObjectStore::PutMode::kReplace)
                  .ok());
  ASSERT_TRUE(
      DeleteFromStore(&objects_, "run", std::nullopt, clock_.Now(), "delete")
          .ok());
  StoreCleaner cleaner(Options(), &objects_, &clock_);
  CleanReport report;
  for (int pass = 0; pass < 4; ++pass) {
    ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
    clock_.Advance(absl::Hours(2));
  }
  EXPECT_EQ(report.orphans_removed, 1u);
  EXPECT_EQ(objects_.objects().count(sealed::PackKey(key, orphan)), 0u);
  for (const std::string& name : theirs)
    EXPECT_EQ(objects_.objects().count(name), 1u) << name;
}

// Damage is reported, and nothing of that run is touched; the other runs are
// listed, deleted from and cleaned.
TEST_F(Cleaning, ADamagedRunKeepsNoOtherBack) {
  const std::unique_ptr<Store> store = OpenStore();
  for (const char* run : {"a", "b", "c"})
    Record(store.get(), run, 0, 9, static_cast<uint64_t>(run[0]));
  ASSERT_EQ(SealAll(OpenSealer(store.get(), &objects_).get()),
            absl::OkStatus());
  const auto log = sealed::ReadRunLog(&objects_, "b");
  ASSERT_TRUE(log.ok());
  const std::string b = sealed::RunKey("b");
  const std::string entry = sealed::LogKey(b, log->logs.begin()->first,
                                           log->logs.begin()->second + 1);
  const std::string stray = sealed::NameKey("README");
  for (const std::string& key : {entry, stray})
    (*objects_.mutable_objects())[key] = "x";

  SealedReader reader(&objects_);
  const auto names = [&] {
    std::vector<std::string> names;
    const auto runs = reader.ListRuns();
    EXPECT_TRUE(runs.ok()) << runs.status();
    if (runs.ok())
      for (const v1::RunInfo& run : *runs) names.push_back(run.run());
    return names;
  };
  // What the other entries of its log contain is available.
  EXPECT_EQ(names(), (std::vector<std::string>{"a", "b", "c"}));
  const std::vector<std::string> said = reader.Unavailable("", MonotonicTime());
  ASSERT_EQ(said.size(), 2u);
  EXPECT_TRUE(absl::StrContains(said[0], stray)) << said[0];
  EXPECT_TRUE(absl::StrContains(said[1], "run \"b\"")) << said[1];
  EXPECT_TRUE(absl::StrContains(said[1], entry)) << said[1];
  EXPECT_TRUE(reader.Unavailable("a", MonotonicTime()).empty());
  EXPECT_TRUE(reader.Unavailable("", MonotonicNow()).empty());
  EXPECT_EQ(reader.ListSteps("b").status(), absl::OkStatus());

  const auto of_b = [&] {
    std::map<std::string, std::string> all;
    for (const auto& [key, bytes] : objects_.objects())
      if (absl::StrContains(key, b)) all.emplace(key, bytes);
    return all;
  };
  const auto before = of_b();
  ASSERT_TRUE(
      DeleteFromStore(&objects_, "c", std::nullopt, clock_.Now(), "delete")
          .ok());
  CleanOptions options = Options();
  options.max_bytes = uint64_t{1} << 30;
  options.max_age = absl::Hours(24 * 365 * 100);
  StoreCleaner cleaner(options, &objects_, &clock_);
  CleanReport report;
  for (int pass = 0; pass < 4; ++pass) {
    EXPECT_TRUE(absl::IsDataLoss(Clean(&cleaner, &report)));
    clock_.Advance(absl::Hours(2));
  }
  EXPECT_EQ(report.objects_removed, 2u);
  EXPECT_EQ(of_b(), before);

  for (const std::string& key : {entry, stray})
    ASSERT_TRUE(objects_.Delete(key).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(reader.Unavailable("", MonotonicTime()).empty());
  EXPECT_EQ(Clean(&cleaner, &report), absl::OkStatus());
}

// Like a collector's own counts: deleted steps are not included.
TEST_F(Cleaning, DeletedStepsAreNotCounted) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get(), "run", 0, 9);
  ASSERT_EQ(SealAll(OpenSealer(store.get(), &objects_).get()),
            absl::OkStatus());
  SealedReader reader(&objects_);
  const v1::RunInfo all = reader.ListRuns()->at(0);
  ASSERT_TRUE(DeleteFromStore(&objects_, "run", std::set<int64_t>{0, 1, 2},
                              clock_.Now(), "delete")
                  .ok());
  const v1::RunInfo left = reader.ListRuns()->at(0);
  EXPECT_EQ(all.steps(), 10u);
  EXPECT_EQ(left.steps(), 7u);
  EXPECT_EQ(left.records(), all.records() / 10 * 7);
  EXPECT_EQ(left.created_unix_ns(), all.created_unix_ns());
}

// A collector that has packed a payload before leaves it out of later packs,
// unless there was a sweep.
TEST_F(Cleaning, WhatACollectorTakesForPackedIsPackedAgainAfterASweep) {
  const std::unique_ptr<Store> store = OpenStore();
  const std::string shared = RandomBytes(77, 5000);
  Frames frames(MakeIdentity("run", 0, 7));
  AddWholeStep(&frames, 1, shared);
  AddWholeStep(&frames, 100, RandomBytes(2, 5000));
  const size_t first = frames.size();
  AddWholeStep(&frames, 200, shared, /*with_payload=*/false);
  ASSERT_TRUE(store->OpenIncarnation(frames.identity()).ok());
  ASSERT_TRUE(store->Commit(frames.Range(0, first)).ok());
  SealerOptions blocks;
  blocks.block_steps = 1;
  const auto sealer = OpenSealer(store.get(), &objects_, blocks);
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  ASSERT_TRUE(DeleteFromStore(&objects_, "run", std::set<int64_t>{1},
                              clock_.Now(), "delete")
                  .ok());
  StoreCleaner cleaner(Options(), &objects_, &clock_);
  ASSERT_EQ(Clean(&cleaner), absl::OkStatus());
  ASSERT_TRUE(store->Commit(frames.Range(first, frames.size())).ok());
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  clock_.Advance(absl::Hours(2));
  CleanReport report;
  ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
  EXPECT_EQ(report.objects_removed, 2u);
  SealedReader reader(&objects_);
  EXPECT_EQ(See(&reader, "run").at({200, 7}),
            See(store.get(), "run").at({200, 7}));
}

// The references of a damaged step are not known: no pack is removed, other
// dead objects are, and no pass sweeps the logs again without need.
TEST_F(Cleaning, ADamagedStepKeepsPacksAndIsLookedAtOnce) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get(), "run", 0, 199);
  SealerOptions blocks;
  blocks.block_steps = 50;
  ASSERT_EQ(SealAll(OpenSealer(store.get(), &objects_, blocks).get()),
            absl::OkStatus());
  const auto log = sealed::ReadRunLog(&objects_, "run");
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_EQ(log->sets.size(), 4u);
  std::string& records = objects_.mutable_objects()->at(
      sealed::RecordsKey(sealed::RunKey("run"), log->sets[2].records().name()));
  for (char& byte : records) byte = static_cast<char>(~byte);
  std::set<int64_t> steps;
  for (int64_t step = 0; step < 50; ++step) steps.insert(step);
  ASSERT_TRUE(
      DeleteFromStore(&objects_, "run", steps, clock_.Now(), "delete").ok());
  StoreCleaner cleaner(Options(), &objects_, &clock_);
  CleanReport report;
  ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
  EXPECT_EQ(report.collected, 1u);
  clock_.Advance(absl::Hours(2));
  ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
  EXPECT_EQ(Count("/packs/"), 4u);
  EXPECT_EQ(Count("/records/"), 3u);
  const size_t entries = Count("/log/");
  ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
  EXPECT_EQ(Count("/log/"), entries);
}

// Objects of a collector that died are removed; what it commits after its
// return is complete, at whichever call it died and whatever the cleaner does
// then.
TEST_F(Cleaning, OrphansGoAndNothingThatIsCommittedLater) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get(), "run", 0, 3);
  const Seen all = See(store.get(), "run");
  size_t orphans = 0;
  for (uint64_t call = 1;; ++call) {
    ASSERT_LT(call, 100u);
    FaultObjectStore objects;
    SealerOptions options;
    options.block_steps = 2;
    options.directory = absl::StrCat(root_, "/s", call);
    StoreCleaner cleaner(Options(), &objects, &clock_);
    objects.FailFrom(call, FaultObjectStore::Fault::kAfter);
    const absl::Status first =
        SealAll(OpenSealer(store.get(), &objects, options).get());
    objects.FailFrom(0, FaultObjectStore::Fault::kAfter);
    ASSERT_EQ(Clean(&cleaner), absl::OkStatus());
    clock_.Advance(absl::Hours(2));
    CleanReport report;
    // The cleaner runs while the restarted collector is about to commit.
    bool cleaned = false;
    objects.before_commit = [&](const std::string& key) {
      if (std::exchange(cleaned, true)) return;
      ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
    };
    const auto again = OpenSealer(store.get(), &objects, options);
    ASSERT_EQ(SealAll(again.get()), absl::OkStatus()) << call;
    objects.before_commit = nullptr;
    orphans += report.orphans_removed;
    for (int pass = 0; pass < 2; ++pass) {
      ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
      clock_.Advance(absl::Hours(2));
    }
    SealedReader reader(&objects);
    EXPECT_EQ(See(&reader, "run"), all) << call;
    // No object is left that no entry names.
    const auto log = sealed::ReadRunLog(&objects, "run");
    std::set<std::string> named;
    for (const v1::SealedLogEntry& set : log->sets) {
      named.insert(set.records().name());
      for (const v1::SealedObject& pack : set.packs())
        named.insert(pack.name());
    }
    for (const auto& [key, bytes] : objects.objects()) {
      if (absl::StrContains(key, "/packs/") ||
          absl::StrContains(key, "/records/")) {
        EXPECT_EQ(named.count(key.substr(key.rfind('/') + 1)), 1u)
            << call << " " << key;
      }
    }
    if (first.ok()) break;
  }
  EXPECT_GT(orphans, 4u);
}

// At each call of one cleaner another one does a complete pass, and at each
// call the first one may die: no needed object is removed, and in the end no
// unneeded one stays.
TEST_F(Cleaning, TwoAtOnceAndDeathAtEachCall) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get(), "run", 0, 3);
  Record(store.get(), "other", 0, 1, 9);
  SealerOptions blocks;
  blocks.block_steps = 1;
  ASSERT_EQ(SealAll(OpenSealer(store.get(), &objects_, blocks).get()),
            absl::OkStatus());
  ASSERT_TRUE(
      DeleteFromStore(&objects_, "run", std::nullopt, clock_.Now(), "delete")
          .ok());
  // An orphan.
  (*objects_.mutable_objects())[sealed::PackKey(sealed::RunKey("run"),
                                                std::string(32, 'e'))] = "half";
  const auto at_first = objects_.objects();
  SealedReader other(&objects_);
  const Seen kept = See(&other, "other");
  for (const bool dies : {false, true}) {
    for (uint64_t call = 1;; ++call) {
      ASSERT_LT(call, 300u);
      *objects_.mutable_objects() = at_first;
      StoreCleaner one(Options(), &objects_, &clock_);
      StoreCleaner two(Options(), &objects_, &clock_);
      ASSERT_EQ(Clean(&two), absl::OkStatus());
      ASSERT_EQ(Clean(&one), absl::OkStatus());
      clock_.Advance(absl::Hours(2));
      bool reached = false;
      if (dies) {
        objects_.FailFrom(call, FaultObjectStore::Fault::kAfter);
        reached = !Clean(&one).ok();
        objects_.FailFrom(0, FaultObjectStore::Fault::kAfter);
      } else {
        objects_.before_call = [&, at = objects_.calls() + call](uint64_t n) {
          if (n != at) return;
          reached = true;
          ASSERT_EQ(Clean(&two), absl::OkStatus());
        };
        ASSERT_EQ(Clean(&one), absl::OkStatus());
        objects_.before_call = nullptr;
      }
      for (int pass = 0; pass < 3; ++pass) {
        ASSERT_EQ(Clean(&two), absl::OkStatus());
        clock_.Advance(absl::Hours(2));
      }
      SealedReader reader(&objects_);
      EXPECT_EQ(See(&reader, "other"), kept) << call;
      EXPECT_TRUE(See(&reader, "run").empty());
      EXPECT_EQ(Count(absl::StrCat(sealed::RunKey("run"), "/packs/")), 0u);
      EXPECT_EQ(Count(absl::StrCat(sealed::RunKey("run"), "/records/")), 0u);
      if (!reached) break;
    }
  }
}

TEST_F(Cleaning, RetentionByAgeAndByBytes) {
  const std::unique_ptr<Store> store = OpenStore();
  const auto sealer = OpenSealer(store.get(), &objects_);
  Record(store.get(), "old", 0, 1);
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  clock_.Advance(absl::Hours(30));
  Record(store.get(), "new", 0, 1, 8);
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  CleanOptions options = Options();
  options.max_age = absl::Hours(24);
  StoreCleaner by_age(options, &objects_, &clock_);
  CleanReport report;
  ASSERT_EQ(Clean(&by_age, &report), absl::OkStatus());
  EXPECT_FALSE(report.waits_for_clock);
  EXPECT_EQ(report.steps_deleted, 2u);
  EXPECT_EQ(report.runs_deleted, 1u);
  SealedReader reader(&objects_);
  EXPECT_TRUE(See(&reader, "old").empty());
  EXPECT_EQ(See(&reader, "new").size(), 2u);
  // One set each; the newest one stays.
  for (int64_t step = 100; step < 104; ++step) {
    clock_.Advance(absl::Minutes(1));
    Record(store.get(), "many", step, step, 20 + static_cast<uint64_t>(step));
    ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  }
  options.max_age = absl::InfiniteDuration();
  options.max_bytes = 20'000;
  StoreCleaner by_bytes(options, &objects_, &clock_);
  ASSERT_EQ(Clean(&by_bytes, &report), absl::OkStatus());
  const auto steps = reader.ListSteps("many");
  ASSERT_EQ(steps->size(), 4u);
  EXPECT_TRUE((*steps)[0].deleted());
  EXPECT_FALSE((*steps)[3].deleted());
  clock_.Advance(absl::Hours(2));
  ASSERT_EQ(Clean(&by_bytes, &report), absl::OkStatus());
  uint64_t bytes = 0;
  for (const auto& [key, data] : objects_.objects()) {
    if (absl::StrContains(key, "/packs/") ||
        absl::StrContains(key, "/records/"))
      bytes += data.size();
  }
  EXPECT_LE(bytes, 30'000u);
}

// A run that continues has another old step in each pass: its logs are not
// swept for each.
TEST_F(Cleaning, WhatIsOldGoesTogether) {
  const std::unique_ptr<Store> store = OpenStore();
  const auto sealer = OpenSealer(store.get(), &objects_);
  const auto record = [&](int64_t step) {
    Record(store.get(), "run", step, step, 7 + static_cast<uint64_t>(step));
    ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  };
  record(0);
  clock_.Advance(absl::Hours(1));
  record(1);
  clock_.Advance(absl::Minutes(23 * 60 + 30));
  record(2);
  CleanOptions options = Options();
  options.max_age = absl::Hours(24);
  StoreCleaner cleaner(options, &objects_, &clock_);
  CleanReport report;
  const size_t entries = Count("/log/");
  ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
  EXPECT_FALSE(report.waits_for_clock);
  EXPECT_EQ(report.steps_deleted, 0u);
  EXPECT_EQ(Count("/log/"), entries);
  clock_.Advance(absl::Minutes(90));
  ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
  EXPECT_EQ(report.steps_deleted, 2u);
}

// Old steps belong to a process that has ended; another one of the run has
// started again and reaches the same steps.
TEST_F(Cleaning, RetentionLeavesTheNextTrainingOfANameAlone) {
  for (const bool by_age : {true, false}) {
    SCOPED_TRACE(by_age ? "age" : "bytes");
    objects_ = FaultObjectStore();
    StoreOptions where{.data_dir = absl::StrCat(root_, by_age ? "/a" : "/b"),
                       .min_free_bytes = 0};
    const auto store = Store::Open(where, file_system_.get(), &clock_);
    ASSERT_TRUE(store.ok()) << store.status();
    SealerOptions sealing;
    sealing.directory = where.data_dir + "/sealing";
    const auto sealer = OpenSealer(store->get(), &objects_, sealing);
    Frames first(MakeIdentity("run", 0, 7)), next(MakeIdentity("run", 0, 8));
    size_t sent = 0;
    const auto send = [&](Frames* frames, size_t* from, int64_t begin,
                          int64_t end) {
      for (int64_t step = begin; step < end; ++step)
        AddWholeStep(frames, step, RandomBytes(step, 4000));
      ASSERT_TRUE((*store)->OpenIncarnation(frames->identity()).ok());
      ASSERT_TRUE((*store)->Commit(frames->Range(*from, frames->size())).ok());
      *from = frames->size();
      ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
    };
    send(&first, &sent, 0, 8);
    clock_.Advance(absl::Hours(20));
    send(&first, &sent, 8, 10);
    clock_.Advance(absl::Hours(10));
    size_t sent_next = 0;
    send(&next, &sent_next, 0, 2);
    CleanOptions options = Options();
    if (by_age)
      options.max_age = absl::Hours(24);
    else
      options.max_bytes = 30'000;
    StoreCleaner cleaner(options, &objects_, &clock_);
    CleanReport report;
    ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
    EXPECT_EQ(report.runs_deleted, 0u);
    // Two old steps stay that another process has just written to.
    EXPECT_EQ(report.steps_deleted, by_age ? 6u : 8u);
    send(&next, &sent_next, 2, 5);
    SealedReader reader(&objects_);
    const auto steps = reader.ListSteps("run");
    ASSERT_TRUE(steps.ok()) << steps.status();
    ASSERT_EQ(steps->size(), 15u);
    for (const v1::StepInfo& info : *steps) {
      const bool old = info.incarnation() == 7 && info.step() < 8 &&
                       (!by_age || info.step() >= 2);
      EXPECT_EQ(info.deleted(), old) << info.ShortDebugString();
    }
  }
}

// A set is stored while all of a run is found to be old.
TEST_F(Cleaning, WhatComesWhileARunExpiresStays) {
  const std::unique_ptr<Store> store = OpenStore();
  const auto sealer = OpenSealer(store.get(), &objects_);
  Record(store.get(), "run", 0, 3);
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  clock_.Advance(absl::Hours(30));
  Record(store.get(), "other", 0, 0, 9);
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  CleanOptions options = Options();
  options.max_age = absl::Hours(24);
  StoreCleaner cleaner(options, &objects_, &clock_);
  Record(store.get(), "run", 2, 5, 8);
  bool done = false;
  // The logs are read one after another: this is after the first of them.
  objects_.before_call = [&, at = objects_.calls() + 8](uint64_t number) {
    if (number < at || std::exchange(done, true)) return;
    ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  };
  CleanReport report;
  ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
  objects_.before_call = nullptr;
  ASSERT_TRUE(done);
  SealedReader reader(&objects_);
  const auto steps = reader.ListSteps("run");
  ASSERT_TRUE(steps.ok()) << steps.status();
  for (const v1::StepInfo& info : *steps) {
    if (info.incarnation() == 8) {
      EXPECT_FALSE(info.deleted()) << info.step();
    }
  }
}

// A clock that makes everything old is not trusted.
TEST_F(Cleaning, AWrongClockDeletesNothing) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get(), "run", 0, 1);
  ASSERT_EQ(SealAll(OpenSealer(store.get(), &objects_).get()),
            absl::OkStatus());
  clock_.Advance(absl::Hours(1000));
  CleanOptions options = Options();
  options.max_age = absl::Hours(24);
  StoreCleaner cleaner(options, &objects_, &clock_);
  CleanReport report;
  ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
  EXPECT_TRUE(report.waits_for_clock);
  EXPECT_EQ(report.steps_deleted, 0u);
  clock_.Advance(absl::Hours(2));
  ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
  EXPECT_EQ(report.steps_deleted, 2u);
}

TEST_F(Cleaning, OldVersionsOfPlansGoAndNoNumberIsUsedTwice) {
  const auto plan = [](uint64_t epoch) {
    v1::PlanSpec spec;
    spec.set_epoch(epoch);
    return spec;
  };
  auto slept = *PlanLog::Open(&objects_);
  ASSERT_TRUE(slept->Save("run", plan(1)).ok());
  auto root = *PlanLog::Open(&objects_);
  for (uint64_t epoch = 2; epoch <= 40; ++epoch)
    ASSERT_TRUE(root->Save("run", plan(epoch)).ok());
  StoreCleaner cleaner(Options(), &objects_, &clock_);
  CleanReport report;
  ASSERT_EQ(Clean(&cleaner, &report), absl::OkStatus());
  EXPECT_EQ(report.plans_removed, 40 - kKeptPlans);
  EXPECT_EQ(Count("v1/plans/"), kKeptPlans);
  // Number 2 is free again, but a root that was suspended must not decide it.
  EXPECT_TRUE(absl::IsAborted(slept->Save("run", plan(99))));
  auto next = PlanLog::Open(&objects_);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ((*(*next)->Load("run"))->epoch(), 40u);
  ASSERT_TRUE(root->Save("run", plan(41)).ok());
  ASSERT_EQ(Clean(&cleaner), absl::OkStatus());
  EXPECT_TRUE(PlanLog::Open(&objects_).ok());
}

}  // namespace
}  // namespace rankprobe
