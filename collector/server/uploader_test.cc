// SPDX-License-Identifier: Apache-2.0
#include "collector/server/uploader.h"

#include <memory>

#include "collector/sealed/testing/sealer_fixture.h"

namespace rankprobe {
namespace {

using testing::FaultObjectStore;
using testing::Frames;
using testing::MakeIdentity;

class UploaderTest : public testing::SealerTest {
 protected:
  // Objects of a stored step: the run's name, the log's, records, an entry, a
  // head.
  static constexpr size_t kObjects = 5;

  // One finished step.
  std::unique_ptr<Store> OpenWithStep() {
    std::unique_ptr<Store> store = OpenStore();
    Frames frames(MakeIdentity("run", 0, 7));
    v1::RecordBatch* const batch = frames.AddBatch(1);
    batch->add_records()->mutable_step_begin()->set_task("statistics");
    v1::Record* const end = batch->add_records();
    end->set_order(1);
    end->mutable_step_end()->set_call_phases(0);
    Commit(store.get(), frames);
    return store;
  }
};

// Not fenced: for example a bucket that is created later, or credentials that
// are being replaced.
TEST_F(UploaderTest, GoesOnWhenAStoreThatRefusedTakesAgain) {
  const std::unique_ptr<Store> store = OpenWithStep();
  FaultObjectStore objects;
  MonotonicEvent stored;
  objects.before_commit = [&](const std::string&) { stored.Set(); };
  objects.FailOnce(1, absl::FailedPreconditionError("NoSuchBucket"));
  const auto sealer = OpenSealer(store.get(), &objects);
  const Logger logger(2, Logger::Severity::kError, &clock_);
  Uploader uploader({.interval = absl::Milliseconds(1)}, sealer.get(), &clock_,
                    &logger);
  uploader.Start();
  EXPECT_TRUE(stored.WaitFor(absl::Seconds(60)));
  uploader.Stop();
  EXPECT_EQ(objects.objects().size(), kObjects);
}

TEST_F(UploaderTest, AsksABusyStoreAgainWhenItIsToldToStop) {
  const std::unique_ptr<Store> store = OpenWithStep();
  FaultObjectStore objects;
  const auto sealer = OpenSealer(store.get(), &objects);
  const Logger logger(2, Logger::Severity::kError, &clock_);
  Uploader uploader(
      {.interval = absl::Hours(1), .last_again = absl::Milliseconds(1)},
      sealer.get(), &clock_, &logger);
  objects.FailOnce(2, absl::UnavailableError("503 SlowDown"));
  uploader.Start();
  uploader.Stop();
  EXPECT_EQ(objects.objects().size(), kObjects);
}

// Stop does not wait longer than that for an unreachable store.
TEST_F(UploaderTest, StopsWithoutAStore) {
  const std::unique_ptr<Store> store = OpenWithStep();
  FaultObjectStore objects;
  const auto sealer = OpenSealer(store.get(), &objects);
  const Logger logger(2, Logger::Severity::kError, &clock_);
  const SystemClock clock;
  Uploader uploader({.interval = absl::Hours(1),
                     .last_round = absl::Milliseconds(20),
                     .last_again = absl::Milliseconds(1)},
                    sealer.get(), &clock, &logger);
  objects.FailFrom(1, FaultObjectStore::Fault::kBefore);
  uploader.Start();
  uploader.Stop();
  EXPECT_TRUE(objects.objects().empty());
}

}  // namespace
}  // namespace rankprobe
