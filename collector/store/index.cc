#include "collector/store/index.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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
  if (absl::StrContains(message, "No space left"))
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

class LevelDbIndex : public Index {
 public:
  LevelDbIndex(std::string directory, std::unique_ptr<leveldb::Cache> cache,
               std::unique_ptr<const leveldb::FilterPolicy> filter,
               std::unique_ptr<leveldb::DB> db)
      : directory_(std::move(directory)),
        cache_(std::move(cache)),
        filter_(std::move(filter)),
        db_(std::move(db)) {}

  std::unique_ptr<IndexBatch> NewBatch() override {
    return std::make_unique<LevelDbBatch>();
  }

  absl::Status Write(std::unique_ptr<IndexBatch> batch, bool sync) override {
    leveldb::WriteOptions options;
    options.sync = sync;
    absl::Status status = FromLevelDb(
        db_->Write(options, static_cast<LevelDbBatch*>(batch.get())->batch()),
        "index write");
    if (!status.ok() || !sync) return status;
    return SyncOlderLogs();
  }

  absl::StatusOr<std::optional<std::string>> Get(
      absl::string_view key) override {
    std::string value;
    const leveldb::Status status =
        db_->Get(leveldb::ReadOptions(), ToSlice(key), &value);
    if (status.IsNotFound()) return std::optional<std::string>();
    if (!status.ok()) return FromLevelDb(status, "index read");
    return std::optional<std::string>(std::move(value));
  }

  absl::Status Scan(absl::string_view prefix,
                    const std::function<absl::Status(absl::string_view key,
                                                     absl::string_view value)>&
                        callback) override {
    leveldb::ReadOptions options;
    options.fill_cache = false;
    options.verify_checksums = true;
    const std::unique_ptr<leveldb::Iterator> it(db_->NewIterator(options));
    for (it->Seek(ToSlice(prefix));
         it->Valid() && absl::StartsWith(ToView(it->key()), prefix);
         it->Next()) {
      if (const absl::Status status =
              callback(ToView(it->key()), ToView(it->value()));
          !status.ok())
        return status;
    }
    return FromLevelDb(it->status(), "index scan");
  }

 private:
  // LevelDB syncs the log it writes now. One it has switched away from may
  // still be the only place of writes whose table is not finished.
  absl::Status SyncOlderLogs() {
    std::error_code error;
    for (const auto& entry :
         std::filesystem::directory_iterator(directory_, error)) {
      if (entry.path().extension() != ".log") continue;
      const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
      // Gone: its table is finished, which LevelDB syncs.
      if (fd < 0) continue;
      const bool synced = ::fdatasync(fd) == 0;
      const int reason = errno;
      ::close(fd);
      if (!synced) {
        return absl::UnavailableError(absl::StrCat(
            "sync of ", entry.path().string(), ": ", std::strerror(reason)));
      }
    }
    if (error) return absl::UnavailableError(error.message());
    return absl::OkStatus();
  }

  const std::string directory_;
  // The database uses the two above it until it is gone.
  const std::unique_ptr<leveldb::Cache> cache_;
  const std::unique_ptr<const leveldb::FilterPolicy> filter_;
  const std::unique_ptr<leveldb::DB> db_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Index>> OpenLevelDbIndex(
    const IndexOptions& options) {
  std::unique_ptr<leveldb::Cache> cache(
      leveldb::NewLRUCache(options.cache_bytes));
  std::unique_ptr<const leveldb::FilterPolicy> filter(
      leveldb::NewBloomFilterPolicy(10));
  leveldb::Options db_options;
  db_options.create_if_missing = true;
  db_options.paranoid_checks = true;
  db_options.write_buffer_size = options.write_buffer_bytes;
  db_options.block_cache = cache.get();
  db_options.filter_policy = filter.get();
  leveldb::DB* db = nullptr;
  const leveldb::Status status =
      leveldb::DB::Open(db_options, options.directory, &db);
  if (!status.ok()) {
    absl::Status error =
        FromLevelDb(status, absl::StrCat("open index ", options.directory));
    if (absl::IsUnavailable(error) &&
        (absl::StrContains(error.message(), "CURRENT") ||
         absl::StrContains(error.message(), "MANIFEST") ||
         absl::StrContains(error.message(), ".ldb"))) {
      error = absl::DataLossError(error.message());
    }
    return error;
  }
  return std::unique_ptr<Index>(
      new LevelDbIndex(options.directory, std::move(cache), std::move(filter),
                       std::unique_ptr<leveldb::DB>(db)));
}

}  // namespace rankprobe
