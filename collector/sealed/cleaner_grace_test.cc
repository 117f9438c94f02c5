// SPDX-License-Identifier: Apache-2.0
// Objects that a cleaner keeps for a while: for slow readers, and for ranks that refer
// to payloads that they sent before.
#include <memory>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "collector/sealed/store_cleaner.h"
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

class Grace : public SealerTest {
 protected:
  Grace() : cleaner_(Options(), &objects_, &clock_) {}

  static CleanOptions Options() {
    CleanOptions options;
    options.grace = absl::Hours(1);
    return options;
  }
  absl::Status Clean() {
    CleanReport report;
    return cleaner_.Clean([] { return false; }, &report);
  }
  // Each step becomes its own set.
  std::unique_ptr<Sealer> OpenSealerOfOne(Store* store) {
    SealerOptions blocks;
    blocks.block_steps = 1;
    return OpenSealer(store, &objects_, blocks);
  }
  size_t CountPacks() const {
    size_t count = 0;
    for (const auto& [key, bytes] : objects_.objects())
      count += absl::StrContains(key, "/packs/") ? 1 : 0;
    return count;
  }

  FaultObjectStore objects_;
  StoreCleaner cleaner_;
};

TEST_F(Grace, AnOrphanStaysUntilItHasBeenSeenForThatLong) {
  const std::unique_ptr<Store> store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 7));
  AddWholeStep(&frames, 1, RandomBytes(1, 4000));
  Commit(store.get(), frames);
  ASSERT_EQ(SealAll(OpenSealer(store.get(), &objects_).get()),
            absl::OkStatus());
  const std::string orphan =
      sealed::PackKey(sealed::RunKey("run"), std::string(32, 'e'));
  (*objects_.mutable_objects())[orphan] = "half";
  for (const absl::Duration passes :
       {absl::ZeroDuration(), absl::Minutes(30), absl::Minutes(29)}) {
    clock_.Advance(passes);
    ASSERT_EQ(Clean(), absl::OkStatus());
    EXPECT_EQ(objects_.objects().count(orphan), 1u) << passes;
  }
  clock_.Advance(absl::Minutes(2));
  ASSERT_EQ(Clean(), absl::OkStatus());
  EXPECT_EQ(objects_.objects().count(orphan), 0u);
  EXPECT_EQ(CountPacks(), 1u);
}

// A reader that found a payload before it was deleted gets an error, not a gap,
// although the place of the payload is not known any more.
TEST_F(Grace, AReaderThatFoundAPayloadIsToldThatItWent) {
  const std::unique_ptr<Store> store = OpenStore();
  // Too large to be read with its neighbours and cached.
  const std::string data = RandomBytes(1, 5 << 20);
  Frames frames(MakeIdentity("run", 0, 7));
  AddWholeStep(&frames, 0, data);
  AddWholeStep(&frames, 100, RandomBytes(2, 4000));
  Commit(store.get(), frames);
  ASSERT_EQ(SealAll(OpenSealerOfOne(store.get()).get()), absl::OkStatus());
  SealedReader slow(&objects_);
  ASSERT_EQ(See(&slow, "run").size(), 2u);
  ASSERT_TRUE(DeleteFromStore(&objects_, "run", std::set<int64_t>{0},
                              clock_.Now(), "delete")
                  .ok());
  for (int pass = 0; pass < 3; ++pass) {
    ASSERT_EQ(Clean(), absl::OkStatus());
    clock_.Advance(absl::Hours(2));
  }
  ASSERT_EQ(CountPacks(), 1u);
  for (int looks = 0; looks < 2; ++looks) {
    ASSERT_TRUE(slow.ListSteps("run").ok());
    const absl::Status read =
        slow.ReadPayload("run", testing::DigestOf(data), data.size(),
                         [](absl::string_view) { return absl::OkStatus(); });
    EXPECT_TRUE(absl::IsFailedPrecondition(read)) << read;
    EXPECT_TRUE(slow.HasPayload("run", testing::DigestOf(data), data.size()));
  }
}

// A rank refers in a new step to a payload that it sent to another collector
// with a step that was deleted since.
TEST_F(Grace, PacksOfTheNewestStepsStay) {
  const std::unique_ptr<Store> store = OpenStore();
  const std::string shared = RandomBytes(77, 4000);
  Frames frames(MakeIdentity("run", 0, 7));
  AddWholeStep(&frames, 0, RandomBytes(1, 4000));
  AddWholeStep(&frames, 50, shared);
  AddWholeStep(&frames, 100, RandomBytes(2, 4000));
  Commit(store.get(), frames);
  ASSERT_EQ(SealAll(OpenSealerOfOne(store.get()).get()), absl::OkStatus());
  ASSERT_EQ(CountPacks(), 3u);
  ASSERT_TRUE(DeleteFromStore(&objects_, "run", std::set<int64_t>{0, 50},
                              clock_.Now(), "delete")
                  .ok());
  for (int pass = 0; pass < 3; ++pass) {
    ASSERT_EQ(Clean(), absl::OkStatus());
    clock_.Advance(absl::Hours(2));
  }
  EXPECT_EQ(CountPacks(), 2u);

  const auto other = Store::Open(testing::OptionsAt(root_ + "/other"),
                                 file_system_.get(), &clock_);
  ASSERT_TRUE(other.ok()) << other.status();
  Frames later(MakeIdentity("run", 0, 8));
  AddWholeStep(&later, 101, shared, /*with_payload=*/false);
  Commit(other->get(), later);
  SealerOptions sealing;
  sealing.directory = root_ + "/other/sealing";
  const auto sealer = OpenSealer(other->get(), &objects_, sealing);
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  clock_.Advance(absl::Hours(1));
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  SealedReader reader(&objects_);
  EXPECT_EQ(See(&reader, "run").at({101, 8})[3], testing::DigestOf(shared));
}

}  // namespace
}  // namespace rankprobe
