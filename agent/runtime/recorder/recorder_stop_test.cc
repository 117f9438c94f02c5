// SPDX-License-Identifier: Apache-2.0
// Waits of the end of a step for a collector, with a manual clock.
#include <memory>
#include <vector>

#include "agent/runtime/testing/recorder_fixture.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using testing::FakeSession;
using ::testing::IsEmpty;
using testing::Received;

class RecorderStopTest : public testing::RecorderFixture {
 protected:
  // Duration of the end of a step with a call.
  absl::Duration End(Recorder* recorder, bool kept = false) {
    recorder->Start();
    const RecordedCall call = recorder->calls().BeginApi("Torch", "relu");
    recorder->calls().Inputs(call, [](CallBuilder&, v1::CallPhase*) {});
    recorder->calls().Outputs(call, [](CallBuilder&, v1::CallPhase*) {});
    const int64_t began = clock_.MonotonicNanos();
    EXPECT_EQ(recorder->Stop(), kept);
    recorder->Step();
    return absl::Nanoseconds(clock_.MonotonicNanos() - began);
  }
};

// The session of a connected collector that commits nothing more.
class StuckSession : public FakeSession {
 public:
  StuckSession(Received* received, ManualClock* clock, SessionStats* stats,
               std::vector<absl::Duration>* told = nullptr)
      : FakeSession(received), clock_(clock), stats_(stats), told_(told) {}
  absl::Status Flush(v1::Durability, absl::Duration deadline) override {
    if (stats_->queue_bytes == 0) return absl::OkStatus();
    clock_->Advance(deadline);
    return absl::DeadlineExceededError("full");
  }
  SessionStats GetStats() const override { return *stats_; }
  void TellStuck(absl::Duration waited) override {
    if (told_ != nullptr) told_->push_back(waited);
  }

 private:
  ManualClock* const clock_;
  const SessionStats* const stats_;
  std::vector<absl::Duration>* const told_;
};

TEST_F(RecorderStopTest, StopWaitsForNobodyWhenWhatItRecordedIsKept) {
  class KeepingSession : public StuckSession {
   public:
    KeepingSession(Received* received, ManualClock* clock, SessionStats* stats,
                   bool* keeps)
        : StuckSession(received, clock, stats), keeps_(keeps) {}
    bool Keep() override { return *keeps_; }

   private:
    const bool* const keeps_;
  };
  SessionStats stats;
  stats.connected = true;
  stats.queue_bytes = 1;
  bool keeps = true;
  RecorderOptions options;
  options.config_json = R"({"dump_path": "d", "level": "L1"})";
  options.stop_deadline = absl::Seconds(10);
  auto recorder = *Recorder::Create(
      options,
      std::make_unique<KeepingSession>(&received_, &clock_, &stats, &keeps),
      &clock_);
  EXPECT_EQ(End(recorder.get(), true), absl::ZeroDuration());
  EXPECT_EQ(received_.Calls(0).size(), 2u) << "and it is on its way";
  keeps = false;
  EXPECT_EQ(End(recorder.get()), absl::Seconds(10));
}

TEST_F(RecorderStopTest, StopWaitsOnceForACollectorThatIsStuck) {
  SessionStats stats;
  stats.connected = true;
  stats.committed_sequence = 7;
  stats.queue_bytes = 1;
  RecorderOptions options;
  options.config_json = R"({"dump_path": "d", "level": "L1"})";
  options.stop_deadline = absl::Seconds(10);
  std::vector<absl::Duration> told;
  auto recorder = *Recorder::Create(
      options,
      std::make_unique<StuckSession>(&received_, &clock_, &stats, &told),
      &clock_);
  EXPECT_EQ(End(recorder.get()), absl::Seconds(10));
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(End(recorder.get()), absl::ZeroDuration());
  // The collector continues, and is stuck again.
  stats.committed_sequence = 9;
  EXPECT_EQ(End(recorder.get()), absl::Seconds(1));
  EXPECT_EQ(End(recorder.get()), absl::ZeroDuration());
  EXPECT_THAT(told, ElementsAre(absl::Seconds(10))) << "of the long wait, once";
  // The disk has space again: the next step waits for the collector as before.
  stats.committed_sequence = 12;
  stats.queue_bytes = 0;
  EXPECT_EQ(End(recorder.get()), absl::ZeroDuration());
  stats.queue_bytes = 1;
  EXPECT_EQ(End(recorder.get()), absl::Seconds(10));
  EXPECT_EQ(told.size(), 2u);
}

// SIGSTOP, a deadlock, a network that drops what is sent.
TEST_F(RecorderStopTest, ACollectorThatSaysNothingCostsAStep45Milliseconds) {
  class SilentSession : public StuckSession {
   public:
    SilentSession(Received* received, ManualClock* clock, SessionStats* stats,
                  std::vector<absl::Duration>* told, int* spooled)
        : StuckSession(received, clock, stats, told),
          stats_(stats),
          spooled_(spooled) {}
    absl::Status Flush(v1::Durability level, absl::Duration deadline) override {
      if (stats_->queue_bytes > 0) stats_->silence += deadline;
      return StuckSession::Flush(level, deadline);
    }
    absl::Status FlushToSpool(absl::Duration) override {
      ++*spooled_;
      return absl::OkStatus();
    }

   private:
    SessionStats* const stats_;
    int* const spooled_;
  };
  SessionStats stats;
  stats.connected = true;
  stats.queue_bytes = 1;
  std::vector<absl::Duration> told;
  int spooled = 0;
  RecorderOptions options;
  options.config_json = R"({"dump_path": "d", "level": "L1"})";
  auto recorder =
      *Recorder::Create(options,
                        std::make_unique<SilentSession>(
                            &received_, &clock_, &stats, &told, &spooled),
                        &clock_);
  EXPECT_EQ(End(recorder.get()), absl::Milliseconds(45));
  EXPECT_EQ(spooled, 1) << "what is not committed is kept, where it can be";
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(End(recorder.get()), absl::ZeroDuration());
  // It continues, and stops again while frames are in flight for 20 ms.
  stats.committed_sequence = 9;
  stats.silence = absl::Milliseconds(20);
  EXPECT_EQ(End(recorder.get()), absl::Milliseconds(25));
  // Its connection was given up for that; steps do not wait for the new one.
  stats.silence = absl::InfiniteDuration();
  stats.committed_sequence = 11;
  EXPECT_EQ(End(recorder.get()), absl::ZeroDuration());
  stats.connected = false;
  EXPECT_EQ(End(recorder.get()), absl::ZeroDuration());
  EXPECT_THAT(told, IsEmpty()) << "its connection tells of it";
  // A collector that responds is waited for as before.
  stats.connected = true;
  stats.silence = absl::ZeroDuration();
  stats.committed_sequence = 12;
  stats.queue_bytes = 0;
  EXPECT_EQ(End(recorder.get()), absl::ZeroDuration());
}

}  // namespace
}  // namespace rankprobe
