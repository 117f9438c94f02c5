// SPDX-License-Identifier: Apache-2.0
// Seals what a collector has recorded, and stores it: steps that have ended
// become a set of objects and an entry of this collector's log of the run
// (shard_log.h).
//
// A step of a process is ready when it is complete and its payloads are
// complete, or when no part of it has arrived for quiet_time. Later data makes
// a set of its own, an addendum: the records whose orders are in no set before.
// Sets are limited by block_bytes and block_steps.
// Ownership: store, object store, file system and clock outlive it. One thread,
// except IsStored.
// Failure: what cannot be stored now is tried again by the next pass, unless
// the log now belongs to another collector (Report.fenced).
#ifndef RANKPROBE_COLLECTOR_SEALED_SEALER_H_
#define RANKPROBE_COLLECTOR_SEALED_SEALER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collector/object_store/object_store.h"
#include "collector/sealed/order_ranges.h"
#include "collector/sealed/shard_log.h"
#include "collector/store/store.h"
#include "common/base/clock.h"
#include "common/io/file_system.h"

namespace rankprobe {

struct SealerOptions {
  // Used by the sealer alone, below the data directory.
  std::string directory;
  absl::Duration quiet_time = absl::Minutes(10);
  uint64_t block_bytes = 64 << 20;
  size_t block_steps = 4096;
  // Limit for cached digests of payloads that are already in a pack and are
  // left out of the next; beyond it some are stored twice.
  size_t known_payloads = 200'000;
  // Deletes steps here once they are stored and their run has advanced by
  // keep_steps.
  bool free_stored = false;
  int64_t keep_steps = 64;
  // Returns the incarnations of connected ranks; may be empty.
  std::function<absl::flat_hash_set<uint64_t>()> live;
};

class Sealer {
 public:
  struct Report {
    uint64_t sets = 0;
    // Number of sealed steps of processes, and how many of them were addenda.
    uint64_t steps = 0, addenda = 0;
    uint64_t bytes = 0;
    uint64_t freed_steps = 0;
    // What was missing in the store and was put again.
    std::vector<std::string> repaired;
    // A log belongs to another collector now. This is final, and the status
    // says so.
    bool fenced = false;
  };

  // Finds or makes the name of this collector's logs.
  static absl::StatusOr<std::unique_ptr<Sealer>> Open(SealerOptions options,
                                                      Store* store,
                                                      ObjectStore* objects,
                                                      FileSystem* file_system,
                                                      const Clock* clock);

  // Seals and stores what is ready of all runs. `stop` ends it between two
  // sets. The report covers what was done, even on an error.
  absl::Status SealReady(const std::function<bool()>& stop, Report* report);

  const std::string& shard() const { return shard_; }

  // Returns whether all that `info` counts is in the store, including the
  // entry. Any thread; false for a run that no pass has reached yet.
  bool IsStored(const std::string& run, const v1::StepInfo& info) const
      ABSL_LOCKS_EXCLUDED(stored_mutex_);

 private:
  using StepId = std::pair<int64_t, uint64_t>;
  struct Sealed {
    // StepInfo.records when it was sealed last.
    uint64_t records = 0;
    OrderRanges orders;
    uint64_t missing_payloads = 0;
  };
  // Digest and length.
  using PayloadId = std::pair<std::string, uint64_t>;
  // Content of the step's records that are in no set.
  struct Survey {
    OrderRanges orders;
    std::vector<PayloadId> payloads;
    // Payloads among them that are not complete.
    std::vector<PayloadId> missing;
  };
  // The set being built.
  struct Block;
  // A step that is not ready: its last record count, and since when it is
  // unchanged.
  struct Waiting {
    uint64_t records = 0;
    int64_t since_ns = 0;
  };
  struct Run {
    std::unique_ptr<ShardLog> log;
    std::map<StepId, Sealed> sealed;
    std::map<StepId, Waiting> waiting;
    // The stored account of each process, by incarnation.
    std::map<uint64_t, std::string> accounts;
    absl::flat_hash_set<PayloadId> payloads;
    // Payloads that were incomplete when their steps were sealed; checked again
    // in each pass.
    std::set<PayloadId> missing;
    // Steps from before this process whose missing payloads are not known yet.
    std::set<StepId> to_survey;
  };

  Sealer(SealerOptions options, Store* store, ObjectStore* objects,
         FileSystem* file_system, const Clock* clock)
      : options_(std::move(options)),
        store_(store),
        objects_(objects),
        file_system_(file_system),
        clock_(clock) {}

  absl::StatusOr<Run*> OpenRun(const std::string& name);
  absl::Status SealRun(const std::string& name,
                       const std::function<bool()>& stop, Report* report);
  absl::Status SealOpenRun(const std::string& name, Run* run,
                           const std::function<bool()>& stop, Report* report);
  // Returns those of the steps that are ready, in the order in which they are
  // sealed.
  std::vector<v1::StepInfo> Ready(const std::vector<v1::StepInfo>& steps,
                                  Run* run);
  bool IsQuiet(const v1::StepInfo& info, Run* run);
  // Builds the next set of some of `steps` from `*next` on, which it advances.
  // Returns false if there is nothing to seal.
  absl::StatusOr<bool> BuildNext(const std::string& name,
                                 const std::vector<v1::StepInfo>& steps,
                                 size_t* next, Run* run);
  absl::StatusOr<Survey> SurveyStep(const std::string& name,
                                    const v1::StepInfo& info,
                                    const OrderRanges& sealed);
  // Creates a directory for the set's files if it has none.
  static absl::Status BeginBlock(const Run& run, Block* block);
  absl::Status AddStep(const std::string& name, const v1::StepInfo& info,
                       const Survey& survey, const Run& run, Block* block);
  absl::Status AddPayload(const std::string& name, const PayloadId& payload,
                          const Run& run, Block* block);
  absl::Status AddAccounts(const std::string& name, const Run& run,
                           Block* block);
  absl::Status FinishBlock(Block* block, Run* run);
  absl::Status StoreSet(Run* run, Report* report);
  absl::Status Free(const std::string& name,
                    const std::vector<v1::StepInfo>& steps, Run* run,
                    Report* report);
  void Note(const v1::SealedLogEntry& entry, Run* run)
      ABSL_LOCKS_EXCLUDED(stored_mutex_);

  const SealerOptions options_;
  Store* const store_;
  ObjectStore* const objects_;
  FileSystem* const file_system_;
  const Clock* const clock_;
  std::string shard_;
  // Used by the thread. It adds runs and changes what of them is sealed only
  // with the mutex held, because IsStored reads them under it.
  std::map<std::string, Run> runs_;
  mutable absl::Mutex stored_mutex_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_SEALER_H_
