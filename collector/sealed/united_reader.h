// SPDX-License-Identifier: Apache-2.0
// The archive of several collectors as one: what they have stored, and what the
// connected ones have not stored yet.
//
// Leaves are asked first, then new entries of the store are read: what a leaf
// has stored when it is asked is found there, and what it stores later was in
// its answer, so that nothing is missed in between. unite.h merges what both
// have of a step: a record counts once. A leaf is only asked for what it has
// not stored: its answer is as large as what waits to be stored, however large
// the archive is. Of that, infos of steps (kMaxBytes of all leaves) and one
// step's records are held here. What is deleted in the store is deleted on the
// leaves as well, whatever they answer. A leaf that does not answer is left out
// of lists, and Unavailable() names it. Data that an earlier list has shown,
// records and payloads, is read, or the call fails and names the leaf.
// Ownership: reader and leaves outlive it. Thread-safe; no lock is held while a
// leaf is asked. Failure: UNAVAILABLE (a leaf), RESOURCE_EXHAUSTED (too much
// waits to be stored), else the store's.
#ifndef RANKPROBE_COLLECTOR_SEALED_UNITED_READER_H_
#define RANKPROBE_COLLECTOR_SEALED_UNITED_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "collector/sealed/live_leaves.h"
#include "collector/sealed/sealed_reader.h"
#include "collector/store/archive_reader.h"
#include "common/base/monotonic_time.h"
#include "rankprobe/v1/leaf.pb.h"

namespace rankprobe {

class UnitedReader : public ArchiveReader {
 public:
  static constexpr size_t kMaxBytes = 256 << 20;
  // Limit for cached places of payloads on leaves.
  static constexpr size_t kMaxPlaces = 200'000;

  UnitedReader(SealedReader* stored, LiveLeaves* leaves)
      : stored_(stored), leaves_(leaves) {}

  absl::StatusOr<std::vector<v1::RunInfo>> ListRuns() override;
  using ArchiveReader::ListSteps;
  absl::StatusOr<std::vector<v1::StepInfo>> ListSteps(
      const std::string& run, const IntSet& steps) override;
  absl::StatusOr<SomeSteps> ListStepsAfter(const std::string& run,
                                           std::optional<int64_t> after,
                                           size_t most) override;
  absl::Status ForEachRecord(const StepKey& key,
                             const RecordFn& callback) override;
  bool HasPayload(const std::string& run, absl::string_view digest,
                  uint64_t length_bytes) override;
  std::string PayloadDamage(const std::string& run, absl::string_view digest,
                            uint64_t length_bytes) override;
  absl::Status ReadPayload(const std::string& run, absl::string_view digest,
                           uint64_t length_bytes,
                           const DataFn& callback) override;
  std::optional<std::string> ContentDigest(const std::string& run,
                                           absl::string_view digest,
                                           uint64_t length_bytes) override;
  absl::Status ForEachIncarnation(const std::string& run,
                                  const IncarnationFn& callback) override;
  std::vector<std::string> Faults(const std::string& run) override {
    return stored_->Faults(run);
  }
  std::vector<std::string> Unavailable(const std::string& run,
                                       MonotonicTime since) override;

 private:
  using StepId = std::pair<int64_t, uint64_t>;
  using PayloadId = std::pair<std::string, uint64_t>;
  // By the leaf's name.
  using Infos = std::map<std::string, v1::StepInfo>;
  // Data of leaves that was not stored when they were asked.
  struct Live {
    uint64_t asked = 0;
    std::map<StepId, Infos> steps;
    // Leaves that did not answer.
    std::set<std::string> silent;
  };
  // A step that was not stored when it was listed last: how many records each
  // leaf has, and whether the store has some of it.
  struct Held {
    std::map<std::string, uint64_t> records;
    bool stored = false;
  };
  struct Run {
    uint64_t asked = 0;
    std::map<StepId, Held> held;
    // Leaves that have data of it, and those that did not answer.
    std::set<std::string> holders, silent;
    absl::flat_hash_map<PayloadId, std::string> places;
  };
  struct Missed {
    std::string why;
    MonotonicTime last;
  };
  // A leaf, and its pending answer.
  struct Asked {
    LiveLeaves::Leaf leaf;
    std::unique_ptr<LiveLeaves::Answer> answer;
  };

  // Asks all connected leaves at once. The others are recorded as missed, and
  // may be named.
  std::vector<Asked> AskAll(const v1::LiveQuestion& question,
                            std::set<std::string>* away);
  static bool MayHave(const LiveLeaves::Leaf& leaf, const std::string& run);
  void Miss(const LiveLeaves::Leaf& leaf, const std::string& run,
            const std::string& why);
  // Takes all parts of an answer; an error of `take` ends it.
  static absl::Status TakeAll(
      LiveLeaves::Answer* answer,
      const std::function<absl::Status(v1::LiveAnswer*)>& take);
  // The same for a list, whose bytes are added to `*bytes`, the sum over all
  // leaves. RESOURCE_EXHAUSTED above kMaxBytes. The leaf's own status is stored
  // in `*of_leaf`.
  static absl::Status TakeList(LiveLeaves::Answer* answer, size_t* bytes,
                               const std::function<void(v1::LiveAnswer*)>& take,
                               absl::Status* of_leaf);
  absl::StatusOr<Live> AskSteps(const std::string& run);
  struct LiveRuns;
  // Asks for all runs, with one question to each leaf.
  absl::StatusOr<LiveRuns> AskRuns();
  // Returns the steps of the run, or the wanted ones.
  absl::StatusOr<std::vector<v1::StepInfo>> UniteSteps(const std::string& run,
                                                       const IntSet& steps,
                                                       Live live);
  // Removes steps of a run that is known to be deleted completely in the store.
  void LeaveOutGone(const std::string& run, Live* live);
  // Removes processes that have no steps left, in the store and in the listing.
  void LeaveOutGone(
      const std::string& run,
      const std::map<uint64_t, std::map<std::string, v1::IncarnationRow>>&
          stored,
      std::map<uint64_t, std::map<std::string, v1::IncarnationRow>>* live);
  // Returns the step merged from the store and the leaves.
  absl::StatusOr<v1::StepInfo> InfoOf(const StepKey& key, const Infos& live,
                                      Held* held);
  // Merges the `wanted` live steps into `infos`, replacing the store's.
  absl::Status Merge(const std::string& run, const Live& live,
                     const std::function<bool(int64_t)>& wanted,
                     std::vector<v1::StepInfo>* infos);
  absl::Status ReadLive(const std::string& leaf, const StepKey& key,
                        const RecordFn& callback);
  // Returns OK if the store now has this many records of that leaf, else `why`
  // or UNAVAILABLE.
  absl::Status CheckStored(const StepKey& key, const std::string& leaf,
                           uint64_t records, const absl::Status& why);
  absl::Status RenewStored(const std::string& run);
  std::optional<std::string> KnownPlace(const std::string& run,
                                        const PayloadId& payload);
  // Returns the leaf that has it; NOT_FOUND if none does. `damage`: where it is
  // damaged.
  absl::StatusOr<std::string> FindLive(const std::string& run,
                                       const PayloadId& payload,
                                       std::string* damage);
  void AddPlaces(const std::string& run, const std::string& leaf,
                 const v1::LiveAnswer& part);

  SealedReader* const stored_;
  LiveLeaves* const leaves_;
  absl::Mutex mutex_;
  uint64_t asked_ ABSL_GUARDED_BY(mutex_) = 0;
  // Existing runs only.
  std::map<std::string, Run> runs_ ABSL_GUARDED_BY(mutex_);
  size_t places_ ABSL_GUARDED_BY(mutex_) = 0;
  // By leaf, for questions about one run, or about all (empty).
  std::map<std::pair<std::string, std::string>, Missed> missed_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_UNITED_READER_H_
