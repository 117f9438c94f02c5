// SPDX-License-Identifier: Apache-2.0
// The archive that collectors have sealed into an object store, as one archive:
// what the entries of all logs of a run name, put together. It has no state of
// its own: any number of them read, anywhere.
//
// Lists look for entries that are new; what they named stays known, for objects
// never change. A run that somebody deletes or cleans is read anew. Of a step that several sets have records of, the set that was
// sealed first has a record of an order (docs/storage.md, "Sealed archive"). Where
// they are of several collectors, to which a rank came one after another, the
// step's records are read to count them, once for each set.
// Memory: some 330 bytes a step of a process, 420 bytes a payload of a run whose
// payloads are asked for (measured: docs/scale.md).
// Small payloads of a pack that are read in its order share requests (read_ahead.h).
// Ownership: the store outlives it. Thread-safe; requests are sent without a lock
// held. Of one run one thread looks for what is new, and one reads the indexes of
// packs; whoever wants the same waits for it. Failure: DATA_LOSS (damage, a hole
// in a log, an object that is not there), FAILED_PRECONDITION (a newer format; what
// is read was removed since), else the store's.
#ifndef RANKPROBE_COLLECTOR_SEALED_SEALED_READER_H_
#define RANKPROBE_COLLECTOR_SEALED_SEALED_READER_H_

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "collector/object_store/object_store.h"
#include "collector/sealed/maintenance_log.h"
#include "collector/sealed/read_ahead.h"
#include "collector/store/archive_reader.h"
#include "rankprobe/v1/sealed.pb.h"

namespace rankprobe {

class SealedReader : public ArchiveReader {
 public:
  explicit SealedReader(ObjectStore* store) : store_(store), packs_(store) {}

  // A run that is damaged is left out, and said by Away.
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

  // Of its logs: entries that are missing, damaged or were replaced.
  std::vector<std::string> Faults(const std::string& run) override;
  // Of all runs (none is named): what the last list could not read.
  std::vector<std::string> Away(const std::string& run,
                                MonotonicTime since) override;

  // What each collector has stored, by the name of its logs: for who puts it
  // together with what they have not (united_reader.h).
  // Looks for what is new of the run. NOT_FOUND: nothing is there.
  absl::Status Renew(const std::string& run) { return Refresh(run); }
  // Of what is known; empty: nothing of the step.
  std::map<std::string, v1::StepInfo> InfosByShard(const StepKey& key);
  absl::Status ForEachRecordByShard(
      const StepKey& key,
      const std::function<absl::Status(const std::string& shard,
                                       const v1::Record&)>& callback);
  // Of what is known, by incarnation.
  std::map<uint64_t, std::map<std::string, v1::IncarnationRow>> AccountsByShard(
      const std::string& run);
  // What was deleted, as far as it is known.
  sealed::Maintenance::Fate FateOf(const StepKey& key);
  // The process was there when the whole run was deleted.
  bool KnewWhenGone(const std::string& run, uint64_t incarnation);

 private:
  using StepId = std::pair<int64_t, uint64_t>;
  // Digest and length.
  using PayloadId = std::pair<std::string, uint64_t>;
  // An object of records, and the place of the step among its members.
  struct Source {
    std::shared_ptr<const v1::SealedObject> object;
    int member = 0;
    // Whose it is.
    int log = 0;
  };
  // Of a step that several collectors have sealed something of.
  struct Several {
    std::map<int, v1::StepInfo> of_logs;
  };
  struct Step {
    v1::StepInfo info;
    std::vector<Source> sources;
    // Of whom `info` is, unless they are several.
    int log = 0;
    std::unique_ptr<Several> several;
  };
  struct Pack {
    std::string name;
    std::string key;
    uint64_t bytes = 0;
  };
  struct PayloadPlace {
    std::shared_ptr<const Pack> pack;
    v1::SealedPayload payload;
  };
  struct Run {
    std::string key;
    // The last entry of each log.
    std::map<std::string, uint64_t> logs;
    sealed::Maintenance maintenance;
    // What of its logs is missing, damaged or was replaced.
    std::vector<absl::Status> faults;
    // It was deleted as a whole, and nothing has come since.
    bool is_gone = false;
    // From 1.
    std::map<std::string, int> log_numbers;
    std::map<StepId, Step> steps;
    // Those whose counts are to be put together.
    std::set<StepId> to_unite;
    // By log.
    std::map<uint64_t, std::map<int, v1::IncarnationRow>> incarnations;
    // Those whose indexes have not been read, and payloads of the others.
    std::map<std::string, uint64_t> unread_packs;
    absl::flat_hash_map<PayloadId, std::shared_ptr<const PayloadPlace>> places;
    // Of packs that were removed since.
    absl::flat_hash_map<PayloadId, std::shared_ptr<const PayloadPlace>>
        removed_places;
    std::set<std::string> packs;
    std::map<PayloadId, std::string> damaged;
    uint64_t payload_bytes = 0;
  };

  // Reads what is new of the run. NOT_FOUND: nothing is there.
  absl::Status Refresh(const std::string& run);
  // None: there is no entry of it.
  absl::StatusOr<std::optional<Run>> ReadAnew(const std::string& run);
  // Why an object that is named is not there: FAILED_PRECONDITION, it was removed
  // since; DATA_LOSS, it should be there. Other statuses as they are.
  absl::Status Missing(const std::string& run, const std::string& object,
                       const absl::Status& status);
  static void AddEntry(v1::SealedLogEntry entry, Run* state);
  static void ForgetGone(Run* state);
  static void AddInfo(v1::StepInfo* info, int log, Step* step);
  static std::map<int, std::string> ShardsOf(const Run& run);
  absl::Status UniteSteps(const std::string& run);
  absl::Status ReadSource(const StepKey& key, const std::string& run_key,
                          const Source& source, const RecordFn& callback);
  // As it is known, read if it is not.
  absl::Status Known(const std::string& run);
  absl::StatusOr<std::shared_ptr<const PayloadPlace>> FindPayload(
      const std::string& run, absl::string_view digest, uint64_t length_bytes);
  absl::StatusOr<std::shared_ptr<const v1::SealedRecordsIndex>> RecordsIndex(
      const std::string& key, uint64_t object_bytes);

  ObjectStore* const store_;
  ReadAhead packs_;
  absl::Mutex mutex_;
  // None is forgotten.
  std::map<std::string, Run> runs_ ABSL_GUARDED_BY(mutex_);
  // What the last list left out, a line each, and when.
  std::vector<std::string> left_out_ ABSL_GUARDED_BY(mutex_);
  MonotonicTime listed_ ABSL_GUARDED_BY(mutex_);
  // Runs that a thread looks for new entries of, and reads indexes of packs of.
  std::set<std::string> refreshing_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> reading_packs_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex index_mutex_ ABSL_ACQUIRED_AFTER(mutex_);
  // The indexes of records that were asked for last.
  std::list<
      std::pair<std::string, std::shared_ptr<const v1::SealedRecordsIndex>>>
      indexes_ ABSL_GUARDED_BY(index_mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_SEALED_READER_H_
