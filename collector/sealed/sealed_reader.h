// SPDX-License-Identifier: Apache-2.0
// The archive that collectors have sealed into an object store, as one archive:
// the entries of all logs of a run, assembled. It has no state of its own: any
// number of readers may run, anywhere.
//
// Lists read new entries; known ones stay cached, because objects never change.
// A run that is deleted or cleaned is read again. If several sets have records
// of a step, the set that was sealed first provides the record of an order
// (docs/storage.md, "Sealed archive"). If the sets are of several collectors,
// to which a rank connected in turn, the step's records are read to count them,
// once for each set.
// Memory: some 330 bytes per step of a process, 420 bytes per payload of a run
// whose payloads are read (measured: docs/scale.md). Small payloads of a pack
// that are read in its order share requests (read_ahead.h).
// Ownership: the store outlives it. Thread-safe; requests are sent without a
// lock held. For each run one thread reads new entries, and one reads the
// indexes of packs; others that need the same wait for it. Failure: DATA_LOSS
// (damage, a hole in a log, a missing object), FAILED_PRECONDITION (a newer
// format; the data was removed meanwhile), else the store's.
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

  // A damaged run is left out, and reported by Unavailable.
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

  // Returns the faults of its logs: entries that are missing, damaged or were
  // replaced.
  std::vector<std::string> Faults(const std::string& run) override;
  // Returns what the last list could not read, for all runs without naming one.
  std::vector<std::string> Unavailable(const std::string& run,
                                       MonotonicTime since) override;

  // Reads new entries of the run. This and the next methods return the data of
  // each collector, by the name of its logs, to be merged with data that is not
  // stored yet (united_reader.h). NOT_FOUND if there is no entry.
  absl::Status Renew(const std::string& run) { return Refresh(run); }
  // Returns cached infos; empty if nothing is known of the step.
  std::map<std::string, v1::StepInfo> InfosByShard(const StepKey& key);
  absl::Status ForEachRecordByShard(
      const StepKey& key,
      const std::function<absl::Status(const std::string& shard,
                                       const v1::Record&)>& callback);
  // Returns cached accounts, by incarnation.
  std::map<uint64_t, std::map<std::string, v1::IncarnationRow>> AccountsByShard(
      const std::string& run);
  // Returns what is known of a deletion.
  sealed::Maintenance::Fate FateOf(const StepKey& key);
  // Returns whether the process existed when the complete run was deleted.
  bool KnewWhenGone(const std::string& run, uint64_t incarnation);

 private:
  using StepId = std::pair<int64_t, uint64_t>;
  // Digest and length.
  using PayloadId = std::pair<std::string, uint64_t>;
  // An object of records, and the position of the step among its members.
  struct Source {
    std::shared_ptr<const v1::SealedObject> object;
    int member = 0;
    // The log of the collector that wrote it.
    int log = 0;
  };
  // A step of which several collectors have sealed records.
  struct Several {
    std::map<int, v1::StepInfo> of_logs;
  };
  struct Step {
    v1::StepInfo info;
    std::vector<Source> sources;
    // The log that `info` is from, unless `several` is set.
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
    // Entries of its logs that are missing, damaged or were replaced.
    std::vector<absl::Status> faults;
    // The complete run was deleted, and nothing has arrived since.
    bool is_gone = false;
    // Numbers begin at 1.
    std::map<std::string, int> log_numbers;
    std::map<StepId, Step> steps;
    // Steps whose counts have to be merged.
    std::set<StepId> to_unite;
    // Accounts by log.
    std::map<uint64_t, std::map<int, v1::IncarnationRow>> incarnations;
    // Packs whose indexes have not been read, and payloads of the others.
    std::map<std::string, uint64_t> unread_packs;
    absl::flat_hash_map<PayloadId, std::shared_ptr<const PayloadPlace>> places;
    // Payloads of packs that were removed since.
    absl::flat_hash_map<PayloadId, std::shared_ptr<const PayloadPlace>>
        removed_places;
    std::set<std::string> packs;
    std::map<PayloadId, std::string> damaged;
    uint64_t payload_bytes = 0;
  };

  // Reads new entries of the run. NOT_FOUND if there are none at all.
  absl::Status Refresh(const std::string& run);
  // Returns nothing if the run has no entry.
  absl::StatusOr<std::optional<Run>> ReadAnew(const std::string& run);
  // Explains why a referenced object does not exist: FAILED_PRECONDITION if it
  // was removed since, DATA_LOSS if it should exist. Returns other statuses
  // unchanged.
  absl::Status Missing(const std::string& run, const std::string& object,
                       const absl::Status& status);
  static void AddEntry(v1::SealedLogEntry entry, Run* state);
  static void ForgetGone(Run* state);
  static void AddInfo(v1::StepInfo* info, int log, Step* step);
  static std::map<int, std::string> ShardsOf(const Run& run);
  absl::Status UniteSteps(const std::string& run);
  absl::Status ReadSource(const StepKey& key, const std::string& run_key,
                          const Source& source, const RecordFn& callback);
  // Returns the cached run, after reading it if necessary.
  absl::Status Known(const std::string& run);
  absl::StatusOr<std::shared_ptr<const PayloadPlace>> FindPayload(
      const std::string& run, absl::string_view digest, uint64_t length_bytes);
  absl::StatusOr<std::shared_ptr<const v1::SealedRecordsIndex>> RecordsIndex(
      const std::string& key, uint64_t object_bytes);

  ObjectStore* const store_;
  ReadAhead packs_;
  absl::Mutex mutex_;
  // Entries are never dropped.
  std::map<std::string, Run> runs_ ABSL_GUARDED_BY(mutex_);
  // What the last list left out, one line each, and its time.
  std::vector<std::string> left_out_ ABSL_GUARDED_BY(mutex_);
  MonotonicTime listed_ ABSL_GUARDED_BY(mutex_);
  // Runs for which a thread reads new entries, or indexes of packs.
  std::set<std::string> refreshing_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> reading_packs_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex index_mutex_ ABSL_ACQUIRED_AFTER(mutex_);
  // The most recently requested indexes of records.
  std::list<
      std::pair<std::string, std::shared_ptr<const v1::SealedRecordsIndex>>>
      indexes_ ABSL_GUARDED_BY(index_mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_SEALED_READER_H_
