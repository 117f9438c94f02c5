// SPDX-License-Identifier: Apache-2.0
// Log of maintenance of a run's sealed sets: deleted steps, merged sets, packs
// that nothing needs (docs/storage.md, "Sealed archive"). All of it is said in
// one log of the run, the log of maintenance, so that whoever deletes and
// whoever cleans come one after another.
//
// Threads: Maintenance is a plain value; the functions may be called anywhere.
// Failure: DATA_LOSS, FAILED_PRECONDITION (a newer format), else the store's.
#ifndef RANKPROBE_COLLECTOR_SEALED_MAINTENANCE_LOG_H_
#define RANKPROBE_COLLECTOR_SEALED_MAINTENANCE_LOG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
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
    // A step of a run that goes on: it is listed as deleted.
    kDeleted,
    // The run was deleted as a whole.
    kGone,
  };

  // Of the log of maintenance, one after another.
  void Note(const v1::SealedLogEntry& entry);

  bool empty() const { return last_ == 0; }
  // The number of its last entry.
  uint64_t last() const { return last_; }
  Fate FateOf(int64_t step, uint64_t incarnation) const;
  // The process was there when the whole run was deleted.
  bool KnewWhenGone(uint64_t incarnation) const {
    return gone_.contains(incarnation);
  }
  // A merge of the log of maintenance has what this entry had; an entry of that
  // log is asked for by its own number.
  bool IsReplaced(const std::string& shard, uint64_t sequence) const;
  bool IsRemoved(const std::string& pack) const {
    return removed_packs_.count(pack) > 0;
  }
  bool IsRemovedRecords(const std::string& records) const {
    return removed_records_.count(records) > 0;
  }
  // There are tombstones that no collection has taken into account.
  bool HasUncollected() const { return last_tombstone_ > collected_through_; }
  uint64_t last_tombstone() const { return last_tombstone_; }

 private:
  struct Merge {
    uint64_t last = 0;
    // Which entry of the log of maintenance it is.
    uint64_t sequence = 0;
  };
  uint64_t last_ = 0;
  // The highest step that went, by incarnation; INT64_MIN: none.
  absl::flat_hash_map<uint64_t, int64_t> gone_;
  // By incarnation the steps that went, as ranges: last by first.
  absl::flat_hash_map<uint64_t, std::map<int64_t, int64_t>> deleted_;
  // By shard and first entry, the largest ones.
  std::map<std::string, std::map<uint64_t, Merge>> merges_;
  std::set<uint64_t> replaced_merges_;
  std::set<std::string> removed_packs_, removed_records_;
  uint64_t last_tombstone_ = 0, collected_through_ = 0;
};

// Reads what is behind the last entries of `logs`, which it moves on, in the
// order of shards and numbers; those that a merge among them, or of
// `maintenance`, stands in place of are passed over. Each log is held against its
// head (log_heads.h), and each entry against the digest that the next one names.
// `bad`, may be null: what is missing, damaged or was replaced, a status each, and
// all else is read; it is an error otherwise.
absl::Status ReadNewEntries(ObjectStore* store, const std::string& run,
                            const Maintenance& maintenance,
                            std::map<std::string, uint64_t>* logs,
                            std::vector<v1::SealedLogEntry>* entries,
                            std::vector<absl::Status>* bad = nullptr);

// All that counts of a run now: sets and merges in the order in which they are
// put together, by log (a merge by that of its sets) and number.
struct RunLog {
  Maintenance maintenance;
  // The last entry of each log.
  std::map<std::string, uint64_t> logs;
  std::vector<v1::SealedLogEntry> sets;
  std::vector<v1::SealedCollection> collections;
};
absl::StatusOr<RunLog> ReadRunLog(ObjectStore* store, const std::string& run,
                                  std::vector<absl::Status>* bad = nullptr);
// Puts `entries`, read from the beginning, into that order.
void Arrange(std::vector<v1::SealedLogEntry> entries, RunLog* log);
// Whose log a set was committed to first.
const std::string& ShardOf(const v1::SealedLogEntry& entry);

// What is wrong with one object, or with one run: the store answers, and the others
// can be read.
bool IsOfOneObject(const absl::Status& status);

// Sizes of all objects whose keys begin with `prefix`, by key.
absl::StatusOr<std::map<std::string, uint64_t>> ListObjects(
    ObjectStore* store, const std::string& prefix);

// Names of the runs that there are, in order. `known`, may be null: names that were
// read before, by key, which are not read again; then those that are there now.
// `bad`, may be null: what is not a name of a run or cannot be read, a status each,
// which is an error otherwise. A run whose name is missing is found by its logs'
// heads, and is among the names.
absl::StatusOr<std::vector<std::string>> ListRunNames(
    ObjectStore* store, std::map<std::string, std::string>* known = nullptr,
    std::vector<absl::Status>* bad = nullptr);

// Puts an entry behind the last one of a log, wherever that is then.
absl::StatusOr<uint64_t> AppendEntry(ObjectStore* store, const std::string& run,
                                     const std::string& shard,
                                     const v1::SealedLogEntry& entry);
// At this number. ABORTED: there is another one.
absl::Status PutEntry(ObjectStore* store, const std::string& run,
                      const std::string& shard, uint64_t sequence,
                      v1::SealedLogEntry entry);

}  // namespace rankprobe::sealed

#endif  // RANKPROBE_COLLECTOR_SEALED_MAINTENANCE_LOG_H_
