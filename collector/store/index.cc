// SPDX-License-Identifier: Apache-2.0
#include "collector/store/index.h"

#include <atomic>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "collector/store/index_env.h"
#include "common/base/status_macros.h"
#include "leveldb/cache.h"
#include "leveldb/db.h"
#include "leveldb/filter_policy.h"
#include "leveldb/write_batch.h"

namespace rankprobe {
namespace {

leveldb::Slice ToSlice(absl::string_view s) { return {s.data(), s.size()}; }
absl::string_view ToView(const leveldb::Slice& s) {
  return {s.data(), s.size()};
}

absl::Status FromLevelDb(const leveldb::Status& status,
                         absl::string_view what) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", status.ToString());
  if (status.IsCorruption() || status.IsInvalidArgument())
    return absl::DataLossError(message);
  // Both conditions are temporary, so the caller may retry.
  if (absl::StrContains(message, "No space left") ||
      absl::StrContains(message, "Too many open files"))
    return absl::ResourceExhaustedError(message);
  return absl::UnavailableError(message);
}

class LevelDbBatch : public IndexBatch {
 public:
  void Put(absl::string_view key, absl::string_view value) override {
    batch_.Put(ToSlice(key), ToSlice(value));
  }
  void Delete(absl::string_view key) override { batch_.Delete(ToSlice(key)); }
  leveldb::WriteBatch* batch() { return &batch_; }

 private:
  leveldb::WriteBatch batch_;
};

// An iterator reads one snapshot, wherever it is moved.
class LevelDbSnapshot : public IndexSnapshot {
 public:
  explicit LevelDbSnapshot(std::shared_ptr<leveldb::DB> db)
      : db_(std::move(db)) {
    leveldb::ReadOptions options;
    options.verify_checksums = true;
    it_.reset(db_->NewIterator(options));
  }
  absl::Status ScanRange(absl::string_view first, absl::string_view last,
                         const ScanFn& callback) override {
    for (it_->Seek(ToSlice(first)); it_->Valid() && ToView(it_->key()) <= last;
         it_->Next()) {
      RP_RETURN_IF_ERROR(callback(ToView(it_->key()), ToView(it_->value())));
    }
    return FromLevelDb(it_->status(), "index scan");
  }

 private:
  const std::shared_ptr<leveldb::DB> db_;
  std::unique_ptr<leveldb::Iterator> it_;
};

class LevelDbIndex : public Index {
 public:
  explicit LevelDbIndex(const IndexOptions& options)
      : options_(options),
        env_(NewIndexEnv(options.file_system, &entries_dirty_)),
        cache_(leveldb::NewLRUCache(options.cache_bytes)),
        filter_(leveldb::NewBloomFilterPolicy(10)) {}

  absl::Status Open() {
    absl::MutexLock lock(&mutex_);
    return OpenLocked();
  }

  std::unique_ptr<IndexBatch> NewBatch() override {
    return std::make_unique<LevelDbBatch>();
  }

  absl::Status Write(std::unique_ptr<IndexBatch> batch, bool sync) override {
    RP_RETURN_IF_ERROR(WriteLogged(std::move(batch)));
    return sync ? Sync() : absl::OkStatus();
  }

  // Does not use LevelDB's sync, because all writes, including those that only
  // have to be COMMITTED, would wait for a disk that is slow to sync.
  absl::Status Sync() override {
    absl::MutexLock sync_lock(&sync_mutex_);
    {
      absl::MutexLock write_lock(&write_mutex_);
      RP_RETURN_IF_ERROR(broken_);
    }
    const absl::Status status = SyncLogs();
    // Without descriptors nothing was synced and nothing is lost: the caller
    // retries.
    if (!status.ok() && !absl::IsResourceExhausted(status)) {
      absl::MutexLock write_lock(&write_mutex_);
      broken_ = status;
    }
    return status;
  }

  absl::Status WriteLogged(std::unique_ptr<IndexBatch> batch) {
    // One write at a time, so that nothing is logged after a torn record.
    absl::MutexLock write_lock(&write_mutex_);
    RP_RETURN_IF_ERROR(broken_);
    std::shared_ptr<leveldb::DB> db;
    {
      absl::MutexLock lock(&mutex_);
      // LevelDB accepts no writes after one that found no space, and its log
      // may end with a torn record: it is opened again from its files.
      if (out_of_space_) RP_RETURN_IF_ERROR(OpenLocked());
      db = db_;
    }
    const absl::Status status =
        FromLevelDb(db->Write(leveldb::WriteOptions(),
                              static_cast<LevelDbBatch*>(batch.get())->batch()),
                    "index write");
    // After a failed sync (of a table) the state on the disk is unknown, so it
    // is not treated as a full disk.
    if (absl::IsResourceExhausted(status) &&
        !absl::StrContains(status.message(), "sync")) {
      absl::MutexLock lock(&mutex_);
      out_of_space_ = true;
      return status;
    }
    // The log may end with a torn record: nothing may be written after it.
    broken_ = absl::IsResourceExhausted(status)
                  ? absl::DataLossError(status.message())
                  : status;
    return broken_;
  }

  absl::StatusOr<std::optional<std::string>> Get(
      absl::string_view key) override {
    std::string value;
    leveldb::ReadOptions options;
    options.verify_checksums = true;
    const std::shared_ptr<leveldb::DB> db = Db();
    if (db == nullptr) return Closed();
    const leveldb::Status status = db->Get(options, ToSlice(key), &value);
    if (status.IsNotFound()) return std::optional<std::string>();
    if (!status.ok()) return FromLevelDb(status, "index read");
    return std::optional<std::string>(std::move(value));
  }

  absl::Status Scan(absl::string_view prefix, const ScanFn& callback) override {
    return ScanWhile(
        prefix,
        [prefix](absl::string_view key) {
          return absl::StartsWith(key, prefix);
        },
        callback);
  }

  absl::Status ScanRange(absl::string_view first, absl::string_view last,
                         const ScanFn& callback) override {
    return ScanWhile(
        first, [last](absl::string_view key) { return key <= last; }, callback);
  }

  template <typename Wanted>
  absl::Status ScanWhile(absl::string_view first, const Wanted& wanted,
                         const ScanFn& callback) {
    leveldb::ReadOptions options;
    options.fill_cache = false;
    options.verify_checksums = true;
    const std::shared_ptr<leveldb::DB> db = Db();
    if (db == nullptr) return Closed();
    const std::unique_ptr<leveldb::Iterator> it(db->NewIterator(options));
    for (it->Seek(ToSlice(first)); it->Valid() && wanted(ToView(it->key()));
         it->Next()) {
      if (const absl::Status status =
              callback(ToView(it->key()), ToView(it->value()));
          !status.ok())
        return status;
    }
    return FromLevelDb(it->status(), "index scan");
  }

  absl::Status ScanRanges(
      absl::Span<const std::pair<std::string, std::string>> ranges,
      const std::function<absl::Status(size_t range, absl::string_view key,
                                       absl::string_view value)>& callback)
      override {
    leveldb::ReadOptions options;
    options.verify_checksums = true;
    const std::shared_ptr<leveldb::DB> db = Db();
    if (db == nullptr) return Closed();
    const std::unique_ptr<leveldb::Iterator> it(db->NewIterator(options));
    for (size_t i = 0; i < ranges.size(); ++i) {
      const auto& [first, last] = ranges[i];
      // A range often begins where the one before ended, so the iterator is
      // reused.
      if (i == 0 || (it->Valid() && ToView(it->key()) < first))
        it->Seek(ToSlice(first));
      for (; it->Valid() && ToView(it->key()) <= last; it->Next()) {
        if (const absl::Status status =
                callback(i, ToView(it->key()), ToView(it->value()));
            !status.ok())
          return status;
      }
      RP_RETURN_IF_ERROR(FromLevelDb(it->status(), "index scan"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<IndexSnapshot>> Snapshot() override {
    std::shared_ptr<leveldb::DB> db = Db();
    if (db == nullptr) return Closed();
    return std::make_unique<LevelDbSnapshot>(std::move(db));
  }

  uint64_t ApproximateBytes(absl::string_view prefix) override {
    const std::string begin(prefix);
    const std::string end = begin + std::string(48, '\xff');
    const leveldb::Range range{leveldb::Slice(begin), leveldb::Slice(end)};
    const std::shared_ptr<leveldb::DB> db = Db();
    uint64_t bytes = 0;
    if (db != nullptr) db->GetApproximateSizes(&range, 1, &bytes);
    return bytes;
  }

  void Compact(absl::string_view prefix) override {
    const std::string begin(prefix);
    // Keys of one table and run share the prefix, and none sorts after this.
    const std::string end = begin + std::string(48, '\xff');
    const leveldb::Slice first(begin), last(end);
    const std::shared_ptr<leveldb::DB> db = Db();
    if (db != nullptr) db->CompactRange(&first, &last);
  }

 private:
  // Syncs the log that LevelDB writes now, and those it has switched from: they
  // may still be the only place of writes whose table is not finished.
  absl::Status SyncLogs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(sync_mutex_) {
    RP_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        options_.file_system->List(options_.directory));
    for (const std::string& name : names) {
      if (!absl::EndsWith(name, ".log")) continue;
      const absl::Status status = options_.file_system->SyncFile(
          absl::StrCat(options_.directory, "/", name));
      // The log was deleted because its table is finished, which LevelDB syncs.
      if (absl::IsNotFound(status)) continue;
      if (absl::IsResourceExhausted(status)) return status;
      if (!status.ok()) return absl::UnavailableError(status.message());
    }
    // Cleared before the sync, so that an entry that is added meanwhile counts.
    if (!entries_dirty_.exchange(false)) return absl::OkStatus();
    const absl::Status status =
        options_.file_system->SyncDirectory(options_.directory);
    if (!status.ok()) entries_dirty_ = true;
    return status;
  }

  static absl::Status Closed() {
    return absl::ResourceExhaustedError("the index waits for free space");
  }

  std::shared_ptr<leveldb::DB> Db() {
    absl::MutexLock lock(&mutex_);
    // The index was closed because the disk was full. Writers read first, so
    // without opening it here no caller would notice that there is space again.
    if (db_ == nullptr && out_of_space_) OpenLocked().IgnoreError();
    return db_;
  }

  absl::Status OpenLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // There must never be two instances over one directory, so wait for readers
    // to release the old one.
    if (db_ != nullptr && db_.use_count() > 1)
      return absl::ResourceExhaustedError("the index is busy; try again");
    leveldb::Options options;
    options.env = env_.get();
    // An index that was open once must not be created again if it is missing.
    options.create_if_missing = options_.create_if_missing && !was_open_;
    options.paranoid_checks = true;
    options.write_buffer_size = options_.write_buffer_bytes;
    // Records of one step resemble each other, so they compress better in
    // blocks of 16 KiB than in LevelDB's 4 KiB.
    options.block_size = 16 << 10;
    options.block_cache = cache_.get();
    options.filter_policy = filter_.get();
    // While it is reopened, readers get an error.
    db_.reset();
    leveldb::DB* db = nullptr;
    const leveldb::Status status =
        leveldb::DB::Open(options, options_.directory, &db);
    if (status.ok()) {
      db_.reset(db);
      was_open_ = true;
      out_of_space_ = false;
      return absl::OkStatus();
    }
    absl::Status error =
        FromLevelDb(status, absl::StrCat("open index ", options_.directory));
    if (absl::IsUnavailable(error) &&
        (absl::StrContains(error.message(), "CURRENT") ||
         absl::StrContains(error.message(), "MANIFEST") ||
         absl::StrContains(error.message(), ".ldb"))) {
      error = absl::DataLossError(error.message());
    }
    return error;
  }

  const IndexOptions options_;
  std::atomic<bool> entries_dirty_{false};
  // The database uses these until it is deleted.
  const std::unique_ptr<leveldb::Env> env_;
  const std::unique_ptr<leveldb::Cache> cache_;
  const std::unique_ptr<const leveldb::FilterPolicy> filter_;
  // Held while files are synced: other syncs wait, writes do not.
  absl::Mutex sync_mutex_ ABSL_ACQUIRED_BEFORE(write_mutex_);
  absl::Mutex write_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  absl::Status broken_ ABSL_GUARDED_BY(write_mutex_);
  absl::Mutex mutex_;
  std::shared_ptr<leveldb::DB> db_ ABSL_GUARDED_BY(mutex_);
  bool out_of_space_ ABSL_GUARDED_BY(mutex_) = false;
  bool was_open_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Index>> OpenLevelDbIndex(
    const IndexOptions& options) {
  auto index = std::make_unique<LevelDbIndex>(options);
  RP_RETURN_IF_ERROR(index->Open());
  return std::unique_ptr<Index>(std::move(index));
}

absl::Status RepairLevelDbIndex(const IndexOptions& options) {
  std::atomic<bool> entries_dirty{false};
  const std::unique_ptr<leveldb::Env> env =
      NewIndexEnv(options.file_system, &entries_dirty);
  const std::unique_ptr<const leveldb::FilterPolicy> filter(
      leveldb::NewBloomFilterPolicy(10));
  leveldb::Options repair;
  repair.env = env.get();
  repair.paranoid_checks = true;
  repair.filter_policy = filter.get();
  repair.write_buffer_size = options.write_buffer_bytes;
  return FromLevelDb(leveldb::RepairDB(options.directory, repair),
                     absl::StrCat("repair index ", options.directory));
}

}  // namespace rankprobe
