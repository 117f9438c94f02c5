// SPDX-License-Identifier: Apache-2.0
// Log of maintenance of a run's sealed sets: deleted steps, merged sets,
// unneeded packs (docs/storage.md, "Sealed archive"). All of it is in one log
// of the run, the log of maintenance, so that deletions and cleaning are
// ordered.
//
// Threads: Maintenance is a plain value; the functions may be called anywhere.
// Failure: DATA_LOSS, FAILED_PRECONDITION (a newer format), else the store's.
#ifndef RANKPROBE_COLLECTOR_SEALED_MAINTENANCE_LOG_H_
#define RANKPROBE_COLLECTOR_SEALED_MAINTENANCE_LOG_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/object_store/object_store.h"
#include "rankprobe/v1/sealed.pb.h"

namespace rankprobe::sealed {

class Maintenance {
 public:
  enum class Fate {
    kThere,
    // A deleted step of a run that continues: it is listed as deleted.
    kDeleted,
    // The complete run was deleted.
    kGone,
  };

  // Adds the entries of the log of maintenance, in their order.
  void Note(const v1::SealedLogEntry& entry);

  bool empty() const { return last_ == 0; }
  // Returns the number of its last entry.
  uint64_t last() const { return last_; }
  Fate FateOf(int64_t step, uint64_t incarnation) const;
  // Returns whether the process existed when the complete run was deleted.
  bool KnewWhenGone(uint64_t incarnation) const {
    return gone_.contains(incarnation);
  }
  // Returns whether a merge in the log of maintenance includes this entry. For
  // an entry of the log of maintenance, `sequence` is its own number.
  bool IsReplaced(const std::string& shard, uint64_t sequence) const;
  bool IsRemoved(const std::string& pack) const {
    return removed_packs_.count(pack) > 0;
  }
  bool IsRemovedRecords(const std::string& records) const {
    return removed_records_.count(records) > 0;
  }
  // Returns whether there are tombstones that no collection has considered.
  bool HasUncollected() const { return last_tombstone_ > collected_through_; }
  uint64_t last_tombstone() const { return last_tombstone_; }

 private:
  struct Merge {
    uint64_t last = 0;
    // Number of its entry in the log of maintenance.
    uint64_t sequence = 0;
  };
  uint64_t last_ = 0;
  // The highest deleted step by incarnation; INT64_MIN: none.
  absl::flat_hash_map<uint64_t, int64_t> gone_;
  // Deleted steps by incarnation, as ranges: last by first.
  absl::flat_hash_map<uint64_t, std::map<int64_t, int64_t>> deleted_;
  // The largest merges, by shard and first entry.
  std::map<std::string, std::map<uint64_t, Merge>> merges_;
  std::set<uint64_t> replaced_merges_;
  std::set<std::string> removed_packs_, removed_records_;
  uint64_t last_tombstone_ = 0, collected_through_ = 0;
};

// Reads the entries after the last ones of `logs`, which it advances, in the
// order of shards and numbers; skips those that a merge among them, or of
// `maintenance`, replaces. Each log is compared with its head (log_heads.h),
// and each entry with the digest in the next one. If `bad` is not null, it gets
// a status for each missing, damaged or replaced entry, and everything else is
// read; otherwise that is an error.
absl::Status ReadNewEntries(ObjectStore* store, const std::string& run,
                            const Maintenance& maintenance,
                            std::map<std::string, uint64_t>* logs,
                            std::vector<v1::SealedLogEntry>* entries,
                            std::vector<absl::Status>* bad = nullptr);

// Everything that is valid of a run: sets and merges in the order in which they
// are assembled, by log (a merge by that of its sets) and number.
struct RunLog {
  Maintenance maintenance;
  // The last entry of each log.
  std::map<std::string, uint64_t> logs;
  std::vector<v1::SealedLogEntry> sets;
  std::vector<v1::SealedCollection> collections;
};
absl::StatusOr<RunLog> ReadRunLog(ObjectStore* store, const std::string& run,
                                  std::vector<absl::Status>* bad = nullptr);
// Sorts `entries`, read from the beginning, into that order.
void Arrange(std::vector<v1::SealedLogEntry> entries, RunLog* log);
// Returns the log to which a set was committed first.
const std::string& ShardOf(const v1::SealedLogEntry& entry);

// Returns whether the error concerns one object or one run: the store answers,
// and the others can be read.
bool IsOfOneObject(const absl::Status& status);

// Returns the sizes of all objects whose keys begin with `prefix`, by key.
absl::StatusOr<std::map<std::string, uint64_t>> ListObjects(
    ObjectStore* store, const std::string& prefix);

// Returns the names of the existing runs, in order. `known`, may be null: names
// read before, by key, which are not read again; on return the existing ones.
// `bad`, may be null, gets a status for each object that is not a name of a run
// or cannot be read, which is an error otherwise. A run whose name is missing
// is found by its logs' heads, and is among the names.
absl::StatusOr<std::vector<std::string>> ListRunNames(
    ObjectStore* store, std::map<std::string, std::string>* known = nullptr,
    std::vector<absl::Status>* bad = nullptr);

// Appends an entry after the last one of a log, wherever that is then.
absl::StatusOr<uint64_t> AppendEntry(ObjectStore* store, const std::string& run,
                                     const std::string& shard,
                                     const v1::SealedLogEntry& entry);
// Puts the entry at this number. ABORTED if there is another one.
absl::Status PutEntry(ObjectStore* store, const std::string& run,
                      const std::string& shard, uint64_t sequence,
                      v1::SealedLogEntry entry);

}  // namespace rankprobe::sealed

#endif  // RANKPROBE_COLLECTOR_SEALED_MAINTENANCE_LOG_H_
