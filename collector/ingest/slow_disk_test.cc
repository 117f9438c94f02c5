// SPDX-License-Identifier: Apache-2.0
// The commit queue over a slow store: no thread of gRPC that delivers a frame,
// a new upload or its end waits for the store.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collector/control/control_plane.h"
#include "collector/ingest/commit_queue.h"
#include "collector/testing/frames.h"
#include "common/base/monotonic_event.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::Frames;
using testing::MakeIdentity;

// Calls `during` inside each call of the store, like a store that waits for a
// disk.
class SlowStore : public FrameStore {
 public:
  SlowStore(FrameStore* store, std::function<void(const std::string&)> during)
      : store_(store), during_(std::move(during)) {}

  absl::Status Commit(absl::Span<const FrameToStore> frames) override {
    during_("Commit");
    return store_->Commit(frames);
  }
  absl::Status Sync() override {
    during_("Sync");
    return store_->Sync();
  }
  bool KeepPayload(const std::string& run, absl::string_view digest,
                   uint64_t length_bytes) override {
    during_("KeepPayload");
    return store_->KeepPayload(run, digest, length_bytes);
  }

 private:
  FrameStore* const store_;
  const std::function<void(const std::string&)> during_;
};

class SlowDiskIngest : public testing::TempDirTest {
 protected:
  static void Submit(CommitQueue* queue, uint64_t upload,
                     const v1::UploadFrame& frame) {
    queue->Submit(upload, ReceivedFrame(frame),
                  SizeOf(frame, frame.ByteSizeLong()));
  }
};

TEST_F(SlowDiskIngest, NothingThatComesFromRanksWaitsForTheStore) {
  const std::unique_ptr<Store> store = OpenStore();
  SystemClock clock;
  ControlPlane control(ControlPlane::Options(), store.get(), store.get(),
                       &clock);
  absl::Mutex mutex;
  // Grouped by the call of the store during which they were made.
  std::map<std::string, int> answered;
  std::string stuck;
  std::vector<std::thread> late;
  uint64_t next_incarnation = 1000;
  std::unique_ptr<CommitQueue> queue;
  const auto probe = [&](const std::string& call) {
    uint64_t incarnation = 0;
    {
      absl::MutexLock lock(&mutex);
      // One failure is enough, and takes long.
      if (!stuck.empty()) return;
      incarnation = next_incarnation++;
    }
    auto* const done = new MonotonicEvent;
    std::thread thread([&queue, incarnation, done] {
      const CommitQueue::Listener nobody{[](const v1::UploadAck&) {},
                                         [](const absl::Status&) {}, nullptr};
      const uint64_t upload =
          queue->Add("s", MakeIdentity("other", 0, incarnation), "", 0, nobody);
      queue->pending_bytes();
      queue->Remove(upload);
      done->Set();
    });
    const bool in_time = done->WaitFor(absl::Seconds(60));
    absl::MutexLock lock(&mutex);
    if (in_time) {
      thread.join();
      delete done;
      ++answered[call];
    } else {
      stuck = call;
      late.push_back(std::move(thread));
    }
  };
  SlowStore slow(store.get(), probe);
  CommitQueue::Options options;
  options.sync_interval = absl::Milliseconds(10);
  // The store is not called before the first frame arrives.
  queue = std::make_unique<CommitQueue>(options, &slow, &control.gate(), &clock,
                                        [](const absl::Status&) {});
  // One rank sends a payload in two pieces that another has offered, too, so
  // that the queue asks the store after each commit whether it is complete.
  const std::string data = testing::RandomBytes(1, 3000);
  Frames sender(MakeIdentity("run", 0, 1)), waiter(MakeIdentity("run", 1, 2));
  sender.AddPayload(data, 2000);
  MonotonicEvent wanted, coming, have;
  const uint64_t first = queue->Add("s", sender.identity(), "", 0,
                                    {[&](const v1::UploadAck& ack) {
                                       if (ack.wanted_digests_size() > 0)
                                         wanted.Set();
                                     },
                                     [](const absl::Status&) {}, nullptr});
  const uint64_t second = queue->Add("s", waiter.identity(), "", 0,
                                     {[&](const v1::UploadAck& ack) {
                                        if (ack.coming_digests_size() > 0)
                                          coming.Set();
                                        if (ack.have_digests_size() > 0)
                                          have.Set();
                                      },
                                      [](const absl::Status&) {}, nullptr});
  v1::UploadFrame offer;
  offer.mutable_offers()->add_digests(testing::DigestOf(data));
  offer.mutable_offers()->add_length_bytes(data.size());
  Submit(queue.get(), first, offer);
  wanted.Wait();
  Submit(queue.get(), second, offer);
  coming.Wait();
  Submit(queue.get(), first, sender.frame(0));
  Submit(queue.get(), first, sender.frame(1));
  have.Wait();
  queue->Finish();
  for (std::thread& thread : late) thread.join();
  absl::MutexLock lock(&mutex);
  EXPECT_EQ(stuck, "");
  EXPECT_GE(answered["Commit"], 1);
  EXPECT_GE(answered["Sync"], 1);
  // Both offers, and the committed part of the payload.
  EXPECT_GE(answered["KeepPayload"], 3);
}

}  // namespace
}  // namespace rankprobe
