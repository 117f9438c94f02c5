// SPDX-License-Identifier: Apache-2.0
// A collector dies at each of its calls to the store, before and after the call
// is done, and at each of its calls to the disk: what a reader sees is
// complete, and in the end everything that was recorded is stored, once.
// FaultObjectStore checks the rules meanwhile: no entry before the objects that
// it names, none changed, no name with two contents.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "collector/object_store/directory_object_store.h"
#include "collector/sealed/testing/sealer_fixture.h"
#include "common/testing/fault_file_system.h"

namespace rankprobe {
namespace {

using testing::FaultFileSystem;
using testing::FaultKind;
using testing::FaultObjectStore;
using testing::Frames;
using testing::MakeIdentity;
using testing::RandomBytes;
using testing::SealerTest;

class SealCrash : public SealerTest {
 protected:
  // Records three ranks, some of whose payloads are equal, in two runs.
  void Record(Store* store) {
    for (const char* const run : {"a", "b"}) {
      for (int64_t rank = 0; rank < 3; ++rank) {
        Frames frames(MakeIdentity(run, rank, 7 + static_cast<uint64_t>(rank)));
        for (int64_t step = 0; step < 3; ++step) {
          frames.AddPayload(RandomBytes(step + rank / 2, 4000));
          v1::RecordBatch* const batch = frames.AddBatch(step);
          batch->add_records()->mutable_step_begin()->set_task("tensor");
          v1::Record* const call = batch->add_records();
          call->set_order(1);
          call->mutable_call()->set_entry("call");
          v1::PayloadRef* const payload = call->mutable_call()
                                              ->mutable_output()
                                              ->add_items()
                                              ->mutable_tensor()
                                              ->mutable_payload();
          payload->set_digest(
              testing::DigestOf(RandomBytes(step + rank / 2, 4000)));
          payload->set_length_bytes(4000);
          v1::Record* const end = batch->add_records();
          end->set_order(2);
          end->mutable_step_end()->set_call_phases(1);
          end->mutable_step_end()->set_payloads(1);
        }
        Commit(store, frames);
      }
    }
  }
  SealerOptions Blocks() {
    SealerOptions options;
    options.block_steps = 4;
    return options;
  }
  // Expects that each visible step is as it was recorded.
  static void ExpectPartOf(const Seen& all, const Seen& seen) {
    for (const auto& [id, lines] : seen) {
      const auto it = all.find(id);
      ASSERT_TRUE(it != all.end());
      EXPECT_EQ(lines, it->second);
    }
  }
};

TEST_F(SealCrash, AtEachCallToTheStore) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get());
  const Seen a = See(store.get(), "a"), b = See(store.get(), "b");
  int deaths = 0;
  for (const auto fault :
       {FaultObjectStore::Fault::kBefore, FaultObjectStore::Fault::kAfter}) {
    for (uint64_t call = 1;; ++call) {
      ASSERT_LT(call, 200u);
      FaultObjectStore objects;
      const std::string directory =
          absl::StrCat(root_, "/s", static_cast<int>(fault), "_", call);
      SealerOptions options = Blocks();
      options.directory = directory;
      absl::Status first;
      {
        const auto sealer = OpenSealer(store.get(), &objects, options);
        objects.FailFrom(call, fault);
        first = SealAll(sealer.get());
      }
      objects.FailFrom(0, fault);
      {
        SealedReader reader(&objects);
        ExpectPartOf(a, See(&reader, "a"));
        ExpectPartOf(b, See(&reader, "b"));
      }
      const auto sealer = OpenSealer(store.get(), &objects, options);
      ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus()) << call;
      SealedReader reader(&objects);
      EXPECT_EQ(See(&reader, "a"), a) << call;
      EXPECT_EQ(See(&reader, "b"), b) << call;
      // Each step is in one set, and there are no objects that no entry names.
      std::map<std::pair<std::string, std::pair<int64_t, uint64_t>>, int> sets;
      std::set<std::string> named;
      for (const auto& [key, bytes] : objects.objects()) {
        if (!absl::StrContains(key, "/log/")) continue;
        const auto entry = sealed::DecodeEntry(bytes);
        ASSERT_TRUE(entry.ok());
        const std::string run = sealed::RunKey(entry->run());
        for (const v1::SealedStep& step : entry->steps()) {
          EXPECT_EQ(
              ++sets[std::make_pair(entry->run(),
                                    std::make_pair(step.info().step(),
                                                   step.info().incarnation()))],
              1);
        }
        named.insert(sealed::RecordsKey(run, entry->records().name()));
        for (const v1::SealedObject& pack : entry->packs())
          named.insert(sealed::PackKey(run, pack.name()));
      }
      for (const auto& [key, bytes] : objects.objects()) {
        if (absl::StrContains(key, "/records/") ||
            absl::StrContains(key, "/packs/")) {
          EXPECT_EQ(named.count(key), 1u) << key;
        }
      }
      EXPECT_TRUE(file_system_->DeleteTree(directory).ok());
      if (first.ok()) break;
      ++deaths;
    }
  }
  EXPECT_GT(deaths, 50);
}

// The store becomes unreachable at each call and returns; the collector
// continues.
TEST_F(SealCrash, AStoreThatGoesAwayAndComesBack) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get());
  const Seen a = See(store.get(), "a"), b = See(store.get(), "b");
  FaultObjectStore objects;
  const auto sealer = OpenSealer(store.get(), &objects, Blocks());
  for (uint64_t call = 1;; ++call) {
    ASSERT_LT(call, 200u);
    objects.FailFrom(call % 7 + 1, call % 2 == 0
                                       ? FaultObjectStore::Fault::kBefore
                                       : FaultObjectStore::Fault::kAfter);
    const absl::Status status = SealAll(sealer.get());
    objects.FailFrom(0, FaultObjectStore::Fault::kBefore);
    if (status.ok()) break;
  }
  SealedReader reader(&objects);
  EXPECT_EQ(See(&reader, "a"), a);
  EXPECT_EQ(See(&reader, "b"), b);
}

// The machine crashes at each call to the disk that holds the set in progress.
TEST_F(SealCrash, AtEachCallToTheDisk) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get());
  const Seen a = See(store.get(), "a");
  int deaths = 0;
  for (const auto unsynced : {FaultFileSystem::Unsynced::kDropped,
                              FaultFileSystem::Unsynced::kHalfKept}) {
    for (uint64_t call = 1;; ++call) {
      ASSERT_LT(call, 1000u);
      FaultFileSystem disk;
      ASSERT_TRUE(disk.CreateDirectories("/d").ok());
      ASSERT_TRUE(disk.SyncDirectory("/").ok());
      FaultObjectStore objects;
      SealerOptions options = Blocks();
      options.directory = "/d/sealing";
      bool died = true;
      disk.FailCall(disk.calls() + call, FaultKind::kCrash);
      {
        auto sealer =
            Sealer::Open(options, store.get(), &objects, &disk, &clock_);
        if (sealer.ok()) died = !SealAll(sealer->get()).ok();
      }
      disk.CrashAndRestart(unsynced);
      SealedReader before(&objects);
      ExpectPartOf(a, See(&before, "a"));
      auto sealer =
          Sealer::Open(options, store.get(), &objects, &disk, &clock_);
      ASSERT_TRUE(sealer.ok()) << call << " " << sealer.status();
      ASSERT_EQ(SealAll(sealer->get()), absl::OkStatus())
          << call << " " << disk.faulty_call();
      SealedReader reader(&objects);
      EXPECT_EQ(See(&reader, "a"), a) << call << " " << disk.faulty_call();
      if (!died) break;
      ++deaths;
    }
  }
  EXPECT_GT(deaths, 100);
}

// The machine whose disk is the store crashes at each call to it, alone or with
// the collector on it: objects that an entry names are complete, and entries
// that were noted as stored stay.
TEST_F(SealCrash, AtEachCallToTheDiskOfTheStore) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get());
  const Seen a = See(store.get(), "a"), b = See(store.get(), "b");
  int deaths = 0;
  for (const bool together : {false, true}) {
    for (const auto unsynced : {FaultFileSystem::Unsynced::kDropped,
                                FaultFileSystem::Unsynced::kHalfKept}) {
      bool died = true;
      for (uint64_t call = 1; died; ++call) {
        ASSERT_LT(call, 1000u);
        FaultFileSystem disk;
        ASSERT_TRUE(disk.CreateDirectories("/d").ok());
        ASSERT_TRUE(disk.SyncDirectory("/").ok());
        FaultFileSystem own;
        FileSystem* const sealing = together ? &disk : &own;
        SealerOptions options = Blocks();
        options.directory = "/d/sealing";
        ASSERT_TRUE(sealing->CreateDirectories("/d").ok());
        disk.FailCall(disk.calls() + call, FaultKind::kCrash);
        {
          DirectoryObjectStore objects(&disk, "/d/objects");
          auto sealer =
              Sealer::Open(options, store.get(), &objects, sealing, &clock_);
          if (sealer.ok()) died = !SealAll(sealer->get()).ok();
        }
        disk.CrashAndRestart(unsynced);
        DirectoryObjectStore objects(&disk, "/d/objects");
        {
          SealedReader reader(&objects);
          ExpectPartOf(a, See(&reader, "a"));
          ExpectPartOf(b, See(&reader, "b"));
        }
        auto sealer =
            Sealer::Open(options, store.get(), &objects, sealing, &clock_);
        ASSERT_TRUE(sealer.ok()) << call << " " << sealer.status();
        ASSERT_EQ(SealAll(sealer->get()), absl::OkStatus())
            << call << " " << disk.faulty_call();
        SealedReader reader(&objects);
        EXPECT_EQ(See(&reader, "a"), a) << call << " " << disk.faulty_call();
        EXPECT_EQ(See(&reader, "b"), b) << call << " " << disk.faulty_call();
        if (HasFailure()) return;
        deaths += died ? 1 : 0;
      }
    }
  }
  EXPECT_GT(deaths, 200);
}

// A pass every ten seconds over runs that ended long ago.
TEST_F(SealCrash, APassWithNothingToSealLeavesTheDiskAlone) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get());
  FaultFileSystem disk;
  ASSERT_TRUE(disk.CreateDirectories("/d").ok());
  FaultObjectStore objects;
  SealerOptions options = Blocks();
  options.directory = "/d/sealing";
  const auto sealer =
      Sealer::Open(options, store.get(), &objects, &disk, &clock_);
  ASSERT_TRUE(sealer.ok());
  ASSERT_EQ(SealAll(sealer->get()), absl::OkStatus());
  const uint64_t disk_calls = disk.calls(), store_calls = objects.calls();
  ASSERT_EQ(SealAll(sealer->get()), absl::OkStatus());
  EXPECT_EQ(disk.calls(), disk_calls);
  EXPECT_EQ(objects.calls(), store_calls);
}

}  // namespace
}  // namespace rankprobe
