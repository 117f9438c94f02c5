// SPDX-License-Identifier: Apache-2.0
// An object store as one process sees it: late, away for a while, with answers
// that are lost, and out of reach from the moment in which the process is killed.
// What had been put stays. Ownership: objects, weather and scheduler outlive it.
// Called on fibers; not thread-safe.
#ifndef RANKPROBE_TESTS_SIM_BUCKET_H_
#define RANKPROBE_TESTS_SIM_BUCKET_H_

#include <cstdint>
#include <string>

#include "collector/object_store/object_store.h"
#include "tests/sim/scheduler.h"

namespace rankprobe::sim {

// What the network and the service do to all who use the store.
struct BucketWeather {
  // Until then no call is done, and none is answered.
  int64_t away_until = 0;
  // Of so many of the next calls the answer is lost.
  int lost_answers = 0;
};

class MortalBucket final : public ObjectStore {
 public:
  MortalBucket(ObjectStore* objects, BucketWeather* weather,
               Scheduler* scheduler)
      : objects_(objects), weather_(weather), scheduler_(scheduler) {}

  void Kill() { alive_ = false; }

  std::string name() const override { return "simulated bucket"; }
  absl::Status Put(const std::string& key, absl::string_view bytes,
                   PutMode mode) override {
    return Do("put", key, [&] { return objects_->Put(key, bytes, mode); });
  }
  absl::Status PutFile(const std::string& key, FileSystem* file_system,
                       const std::string& path) override {
    return Do("put", key,
              [&] { return objects_->PutFile(key, file_system, path); });
  }
  absl::StatusOr<std::string> Get(const std::string& key, uint64_t offset,
                                  uint64_t bytes) override {
    return Do("get", key, [&] { return objects_->Get(key, offset, bytes); });
  }
  absl::StatusOr<ObjectTail> GetTail(const std::string& key,
                                     uint64_t bytes) override {
    return Do("get", key, [&] { return objects_->GetTail(key, bytes); });
  }
  absl::StatusOr<ObjectList> List(const std::string& prefix,
                                  const std::string& start_after,
                                  size_t most) override {
    return Do("list", prefix,
              [&] { return objects_->List(prefix, start_after, most); });
  }
  absl::Status Delete(const std::string& key) override {
    return Do("delete", key, [&] { return objects_->Delete(key); });
  }

 private:
  // The process may be killed while it waits, before the call is done or behind it.
  template <typename Call>
  auto Do(const char* what, const std::string& key, const Call& call)
      -> decltype(call()) {
    const auto travel = [this] {
      scheduler_->Sleep(
          scheduler_->Between(absl::Milliseconds(1), absl::Milliseconds(20)));
    };
    travel();
    if (!alive_ || scheduler_->nanos() < weather_->away_until)
      return absl::UnavailableError("the store does not answer");
    auto answer = call();
    scheduler_->Trace(absl::StrCat(what, " ", key));
    travel();
    if (!alive_) return absl::UnavailableError("the process was killed");
    if (weather_->lost_answers > 0) {
      --weather_->lost_answers;
      return absl::DeadlineExceededError("the answer is lost");
    }
    return answer;
  }

  ObjectStore* const objects_;
  BucketWeather* const weather_;
  Scheduler* const scheduler_;
  bool alive_ = true;
};

}  // namespace rankprobe::sim

#endif  // RANKPROBE_TESTS_SIM_BUCKET_H_
