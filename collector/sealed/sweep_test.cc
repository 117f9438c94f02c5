// SPDX-License-Identifier: Apache-2.0
// A sweep runs between a collector and its commit, at each call to the store
// and to the disk: no later entry names objects that were put before it, so
// that they may be removed at any time; and everything that was recorded is
// stored, once.
#include <memory>
#include <set>
#include <string>

#include "collector/sealed/maintenance_log.h"
#include "collector/sealed/testing/whole_steps.h"
#include "common/testing/fault_file_system.h"

namespace rankprobe {
namespace {

using testing::AddWholeStep;
using testing::FaultFileSystem;
using testing::FaultKind;
using testing::FaultObjectStore;
using testing::Frames;
using testing::MakeIdentity;
using testing::RandomBytes;
using testing::SealerTest;

class Sweeping : public SealerTest {
 protected:
  void Record(Store* store) {
    Frames frames(MakeIdentity("run", 0, 7));
    // One payload shared by all steps, and one of each.
    for (int64_t step = 0; step < 4; ++step)
      AddWholeStep(&frames, step, RandomBytes(step / 2, 4000));
    Commit(store, frames);
  }
  static SealerOptions Blocks(const std::string& directory) {
    SealerOptions options;
    options.block_steps = 2;
    options.directory = directory;
    return options;
  }
  // Sweeps all logs of the run as a janitor does. Returns the objects that no
  // entry names then, which may be removed at any time.
  static std::set<std::string> Sweep(FaultObjectStore* objects, int number) {
    const std::string run = sealed::RunKey("run");
    std::set<std::string> candidates;
    for (const auto& [key, bytes] : objects->objects()) {
      if (absl::StrContains(key, "/packs/") ||
          absl::StrContains(key, "/records/"))
        candidates.insert(key);
    }
    const auto all = objects->objects();
    for (const auto& [key, bytes] : all) {
      if (!absl::StartsWith(key, sealed::ShardsPrefix(run))) continue;
      v1::SealedLogEntry sweep;
      sweep.mutable_sweep()->set_nonce(absl::StrCat(number));
      EXPECT_TRUE(sealed::AppendEntry(
                      objects, "run",
                      key.substr(sealed::ShardsPrefix(run).size()), sweep)
                      .ok());
    }
    const auto log = sealed::ReadRunLog(objects, "run");
    EXPECT_TRUE(log.ok()) << log.status();
    if (!log.ok()) return {};
    for (const v1::SealedLogEntry& set : log->sets) {
      candidates.erase(sealed::RecordsKey(run, set.records().name()));
      for (const v1::SealedObject& pack : set.packs())
        candidates.erase(sealed::PackKey(run, pack.name()));
    }
    return candidates;
  }
  static void Remove(FaultObjectStore* objects,
                     const std::set<std::string>& keys) {
    for (const std::string& key : keys) objects->mutable_objects()->erase(key);
  }
};

// FaultObjectStore checks at each commit that the named objects exist.
TEST_F(Sweeping, BeforeEachCallToTheStore) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get());
  const Seen all = See(store.get(), "run");
  int swept = 0;
  for (uint64_t call = 1;; ++call) {
    ASSERT_LT(call, 200u);
    std::set<std::string> removable;
    FaultObjectStore objects;
    const auto sealer = OpenSealer(store.get(), &objects,
                                   Blocks(absl::StrCat(root_, "/s", call)));
    bool reached = false;
    objects.before_call = [&, at = objects.calls() + call](uint64_t number) {
      if (number != at) return;
      reached = true;
      removable = Sweep(&objects, 1);
      if (call % 2 == 0) Remove(&objects, removable);
    };
    ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus()) << call;
    objects.before_call = nullptr;
    // The janitor was suspended before it removes them.
    Remove(&objects, removable);
    SealedReader reader(&objects);
    EXPECT_EQ(See(&reader, "run"), all) << call;
    // Again, with all logs unchanged: no named object is removed.
    Remove(&objects, Sweep(&objects, 2));
    SealedReader after(&objects);
    EXPECT_EQ(See(&after, "run"), all) << call;
    if (!reached) break;
    ++swept;
  }
  EXPECT_GT(swept, 8);
}

// The collector dies at each call to its disk while it handles the sweep, and
// afterwards in the store as well.
TEST_F(Sweeping, AtEachCallToTheDisk) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get());
  const Seen all = See(store.get(), "run");
  for (uint64_t call = 1;; ++call) {
    ASSERT_LT(call, 1000u);
    FaultFileSystem disk;
    ASSERT_TRUE(disk.CreateDirectories("/d").ok());
    ASSERT_TRUE(disk.SyncDirectory("/").ok());
    FaultObjectStore objects;
    // The sweep comes before the first commit.
    int commits = 0;
    objects.before_commit = [&](const std::string&) {
      if (++commits == 1) Remove(&objects, Sweep(&objects, 1));
    };
    disk.FailCall(call, FaultKind::kCrash);
    bool died = true;
    {
      auto sealer = Sealer::Open(Blocks("/d/sealing"), store.get(), &objects,
                                 &disk, &clock_);
      if (sealer.ok()) died = !SealAll(sealer->get()).ok();
    }
    disk.CrashAndRestart(FaultFileSystem::Unsynced::kDropped);
    auto sealer = Sealer::Open(Blocks("/d/sealing"), store.get(), &objects,
                               &disk, &clock_);
    ASSERT_TRUE(sealer.ok()) << call << " " << sealer.status();
    ASSERT_EQ(SealAll(sealer->get()), absl::OkStatus())
        << call << " " << disk.faulty_call();
    SealedReader reader(&objects);
    EXPECT_EQ(See(&reader, "run"), all) << call << " " << disk.faulty_call();
    if (!died) break;
  }
}

// A copy of a data directory that was made while a set was in progress is
// fenced even if it is started after the other one has stored its own.
TEST_F(Sweeping, ACopyIsFencedAndNotSwept) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get());
  FaultFileSystem disk, copy;
  FaultObjectStore objects;
  for (FaultFileSystem* const each : {&disk, &copy})
    ASSERT_TRUE(each->CreateDirectories("/d/sealing").ok());
  // Two of one name, each with its own decided set.
  for (FaultFileSystem* const each : {&disk, &copy}) {
    auto shard =
        each->OpenForWrite("/d/sealing/shard", FileSystem::OpenMode::kTruncate);
    ASSERT_TRUE((*shard)->Append(std::string(32, 'a')).ok());
    ASSERT_TRUE((*shard)->Close().ok());
  }
  const auto seal = [&](FaultFileSystem* files, size_t block_steps,
                        Sealer::Report* report) {
    SealerOptions options = Blocks("/d/sealing");
    options.block_steps = block_steps;
    auto sealer = Sealer::Open(options, store.get(), &objects, files, &clock_);
    EXPECT_TRUE(sealer.ok());
    return SealAll(sealer->get(), report);
  };
  Sealer::Report report;
  objects.FailFrom(2, FaultObjectStore::Fault::kBefore);
  EXPECT_FALSE(seal(&copy, 1, &report).ok());
  objects.FailFrom(0, FaultObjectStore::Fault::kBefore);
  ASSERT_EQ(seal(&disk, 2, &report), absl::OkStatus());
  EXPECT_FALSE(report.fenced);
  const auto before = objects.objects();
  EXPECT_FALSE(seal(&copy, 1, &report).ok());
  EXPECT_TRUE(report.fenced);
  EXPECT_EQ(objects.objects(), before);
}

}  // namespace
}  // namespace rankprobe
