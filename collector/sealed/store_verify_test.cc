// SPDX-License-Identifier: Apache-2.0
// Verification of an object store, and how it names faults.
#include "collector/sealed/store_verify.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collector/sealed/maintenance_log.h"
#include "collector/sealed/sealed_keys.h"
#include "collector/sealed/store_cleaner.h"
#include "collector/sealed/store_deletion.h"
#include "collector/sealed/testing/whole_steps.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::AddWholeStep;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FaultObjectStore;
using testing::Frames;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MakeIdentity;
using testing::RandomBytes;
using testing::SealerTest;

class StoreVerify : public SealerTest {
 protected:
  // Seals steps FIRST to LAST, in sets of two.
  void SealSteps(const std::string& run, int64_t first, int64_t last) {
    const std::unique_ptr<Store> store = OpenStore();
    Frames frames(MakeIdentity(run, 0, 7));
    for (int64_t step = first; step <= last; ++step)
      AddWholeStep(&frames, step, RandomBytes(step, 4000));
    Commit(store.get(), frames);
    SealerOptions options;
    options.block_steps = 2;
    ASSERT_EQ(SealAll(OpenSealer(store.get(), &objects_, options).get()),
              absl::OkStatus());
  }
  v1::VerifyReport Verify(bool read_data = false, uint32_t percent = 0) {
    v1::VerifyRequest request;
    request.set_read_data(read_data);
    request.set_subset_percent(percent);
    const auto report = VerifyObjectStore(&objects_, request, {});
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : v1::VerifyReport();
  }
  static std::vector<std::string> Faults(const v1::VerifyReport& report) {
    EXPECT_EQ(report.fault_count(),
              static_cast<uint64_t>(report.faults_size()));
    return {report.faults().begin(), report.faults().end()};
  }
  // Returns the keys of run "run" that contain `part`, in order.
  std::vector<std::string> Keys(const std::string& part) const {
    std::vector<std::string> keys;
    const std::string prefix = sealed::RunPrefix(sealed::RunKey("run"));
    for (const auto& [key, bytes] : objects_.objects())
      if (absl::StartsWith(key, prefix) && absl::StrContains(key, part))
        keys.push_back(key);
    return keys;
  }
  std::string& Object(const std::string& key) {
    return (*objects_.mutable_objects())[key];
  }

  FaultObjectStore objects_;
};

TEST_F(StoreVerify, AWholeStoreHasNoFaults) {
  SealSteps("run", 0, 5);
  SealSteps("other", 0, 1);
  for (const bool read_data : {false, true}) {
    const v1::VerifyReport report = Verify(read_data);
    EXPECT_THAT(Faults(report), IsEmpty());
    EXPECT_TRUE(report.finished());
    EXPECT_EQ(report.objects(), 8u) << "records and a pack of each set";
    EXPECT_EQ(report.records(), 24u);
    EXPECT_EQ(report.payload_bytes_read() > 8 * 4000u, read_data);
  }
}

TEST_F(StoreVerify, WhatIsGoneIsNamedWithItsSteps) {
  SealSteps("run", 0, 3);
  SealSteps("other", 0, 1);
  const std::vector<std::string> packs = Keys("/packs/"),
                                 records = Keys("/records/");
  ASSERT_EQ(packs.size(), 2u);
  ASSERT_EQ(records.size(), 2u);
  objects_.mutable_objects()->erase(packs[0]);
  Object(records[1]).resize(100);
  const auto faults = Faults(Verify());
  ASSERT_EQ(faults.size(), 2u);
  std::string both = absl::StrCat(faults[0], "\n", faults[1]);
  EXPECT_THAT(both, AllOf(HasSubstr(absl::StrCat("tensors: ", packs[0])),
                          HasSubstr("is not there"),
                          HasSubstr(absl::StrCat("records: ", records[1])),
                          HasSubstr("has 100 bytes there")));
  // Objects are in the order of their names, which are digests.
  EXPECT_THAT(both,
              AllOf(::testing::AnyOf(HasSubstr("run run, steps 0 to 1: "),
                                     HasSubstr("run run, steps 2 to 3: ")),
                    ::testing::Not(HasSubstr("run other"))));
}

TEST_F(StoreVerify, BytesThatChangedAreFoundWhereTheyAreRead) {
  SealSteps("run", 4, 4);
  const std::string pack = Keys("/packs/").front();
  Object(pack)[1000] ^= 1;
  EXPECT_THAT(Faults(Verify()), IsEmpty());
  EXPECT_THAT(Faults(Verify(/*read_data=*/true)),
              ElementsAre(AllOf(HasSubstr("run run, step 4: tensors: "),
                                HasSubstr(pack), HasSubstr("is damaged"))));
}

TEST_F(StoreVerify, ASubsetIsAPartOfIt) {
  SealSteps("run", 0, 99);
  const uint64_t all = Verify(true).payload_bytes_read();
  const uint64_t some = Verify(true, 20).payload_bytes_read();
  EXPECT_GT(some, 0u);
  EXPECT_LT(some, all / 4 * 3);
  EXPECT_EQ(Verify(true, 20).payload_bytes_read(), some);
  EXPECT_EQ(Verify(true, 100).payload_bytes_read(), all);
}

TEST_F(StoreVerify, ALogThatCannotBeReadIsAFaultOfItsRun) {
  SealSteps("run", 0, 3);
  SealSteps("other", 0, 1);
  Object(Keys("/log/").front())[20] ^= 1;
  const v1::VerifyReport report = Verify();
  EXPECT_THAT(Faults(report), ElementsAre(HasSubstr("run run: ")));
  EXPECT_EQ(report.objects(), 4u) << "the rest was looked at";
}

TEST_F(StoreVerify, WhatAJanitorRemovedIsNoFault) {
  // Packs of the 64 newest steps stay.
  SealSteps("run", 0, 69);
  ASSERT_TRUE(DeleteFromStore(&objects_, "run", std::set<int64_t>{0, 1},
                              clock_.Now(), "delete")
                  .ok());
  EXPECT_THAT(Faults(Verify(true)), IsEmpty());
  EXPECT_EQ(Verify().records(), 204u);
  CleanOptions options;
  options.grace = absl::Hours(1);
  StoreCleaner cleaner(options, &objects_, &clock_);
  CleanReport cleaned;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(cleaner.Clean([] { return false; }, &cleaned), absl::OkStatus());
    clock_.Advance(absl::Hours(2));
    EXPECT_THAT(Faults(Verify(true)), IsEmpty());
  }
  EXPECT_EQ(Keys("/packs/").size(), 34u);
}

TEST_F(StoreVerify, WhatIsRemovedWhileItLooksIsNoFault) {
  SealSteps("run", 0, 3);
  const std::string pack = Keys("/packs/").front();
  const uint64_t before = objects_.calls();
  EXPECT_THAT(Faults(Verify()), IsEmpty());
  const uint64_t after = objects_.calls();
  // Between the reads of the log and of the objects, like a janitor: first the
  // entry, then the removal.
  bool done = false;
  objects_.before_call = [&](uint64_t number) {
    if (number != after + (after - before) - 1) return;
    done = true;
    v1::SealedLogEntry entry;
    entry.mutable_collection()->add_packs(pack.substr(pack.rfind('/') + 1));
    ASSERT_TRUE(
        sealed::AppendEntry(&objects_, "run", sealed::kMaintenanceShard, entry)
            .ok());
    objects_.mutable_objects()->erase(pack);
  };
  const v1::VerifyReport report = Verify();
  EXPECT_TRUE(done);
  EXPECT_THAT(Faults(report), IsEmpty());
}

TEST_F(StoreVerify, AStoreThatDoesNotAnswerIsAnError) {
  SealSteps("run", 0, 3);
  for (uint64_t call = 1; call <= 3; ++call) {
    objects_.FailOnce(call, absl::UnavailableError("away"));
    const auto report = VerifyObjectStore(&objects_, v1::VerifyRequest(), {});
    EXPECT_TRUE(absl::IsUnavailable(report.status())) << call;
  }
  // A caller that cancels ends the verification as well.
  const auto ended =
      VerifyObjectStore(&objects_, v1::VerifyRequest(),
                        [](const auto&) { return absl::CancelledError(); });
  EXPECT_TRUE(absl::IsCancelled(ended.status()));
}

}  // namespace
}  // namespace rankprobe
