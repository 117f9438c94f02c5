// SPDX-License-Identifier: Apache-2.0
#include "web/graph/read_only_sqlite.h"

#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/monotonic_time.h"

namespace rankprobe {
namespace {

constexpr char kVfsName[] = "rankprobe-descriptor";
// Virtual machine steps between two checks of the clock: about 50 microseconds.
constexpr int kStepsPerLook = 5000;
constexpr int kMostValueBytes = 32 << 20;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             MonotonicNow().time_since_epoch())
      .count();
}

// A file as SQLite sees it: a descriptor that is read at offsets.
struct DescriptorFile {
  sqlite3_file base;
  int fd;
};
int FdOf(sqlite3_file* file) {
  return reinterpret_cast<DescriptorFile*>(file)->fd;
}

int CloseFile(sqlite3_file*) { return SQLITE_OK; }
int ReadFile(sqlite3_file* file, void* out, int amount, sqlite3_int64 offset) {
  auto* at = static_cast<char*>(out);
  while (amount > 0) {
    const ssize_t count =
        ::pread(FdOf(file), at, static_cast<size_t>(amount), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SQLITE_IOERR_READ;
    if (count == 0) {
      std::memset(at, 0, static_cast<size_t>(amount));
      return SQLITE_IOERR_SHORT_READ;
    }
    at += count;
    offset += count;
    amount -= static_cast<int>(count);
  }
  return SQLITE_OK;
}
int WriteFile(sqlite3_file*, const void*, int, sqlite3_int64) {
  return SQLITE_READONLY;
}
int TruncateFile(sqlite3_file*, sqlite3_int64) { return SQLITE_READONLY; }
int SyncFile(sqlite3_file*, int) { return SQLITE_OK; }
int SizeOfFile(sqlite3_file* file, sqlite3_int64* size) {
  struct stat info;
  if (::fstat(FdOf(file), &info) != 0) return SQLITE_IOERR_FSTAT;
  *size = info.st_size;
  return SQLITE_OK;
}
int LockFile(sqlite3_file*, int) { return SQLITE_OK; }
int HasReservedLock(sqlite3_file*, int* out) {
  *out = 0;
  return SQLITE_OK;
}
int ControlFile(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
int SectorSize(sqlite3_file*) { return 4096; }
int Characteristics(sqlite3_file*) { return SQLITE_IOCAP_IMMUTABLE; }

const sqlite3_io_methods kMethods = {
    1, CloseFile, ReadFile, WriteFile, TruncateFile, SyncFile, SizeOfFile,
    LockFile, LockFile, HasReservedLock, ControlFile, SectorSize,
    Characteristics,
    // Methods of later versions.
    nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};

// The name of a file is the number of its descriptor.
int OpenFile(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags,
             int* out_flags) {
  auto* const opened = reinterpret_cast<DescriptorFile*>(file);
  opened->base.pMethods = nullptr;
  int fd = -1;
  if (name == nullptr || (flags & SQLITE_OPEN_MAIN_DB) == 0 ||
      !absl::SimpleAtoi(name, &fd) || fd < 0) {
    return SQLITE_CANTOPEN;
  }
  opened->fd = fd;
  opened->base.pMethods = &kMethods;
  if (out_flags != nullptr)
    *out_flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_MAIN_DB;
  return SQLITE_OK;
}
int DeleteFile(sqlite3_vfs*, const char*, int) { return SQLITE_READONLY; }
int AccessFile(sqlite3_vfs*, const char*, int, int* out) {
  *out = 0;
  return SQLITE_OK;
}
int FullName(sqlite3_vfs*, const char* name, int size, char* out) {
  sqlite3_snprintf(size, out, "%s", name);
  return SQLITE_OK;
}

// Registered once, in addition to the default VFS.
bool RegisterVfs() {
  static const bool registered = [] {
    sqlite3_initialize();
    const sqlite3_vfs* const usual = sqlite3_vfs_find(nullptr);
    if (usual == nullptr) return false;
    static sqlite3_vfs vfs = {};
    vfs.iVersion = 1;
    vfs.szOsFile = sizeof(DescriptorFile);
    vfs.mxPathname = 64;
    vfs.zName = kVfsName;
    vfs.xOpen = OpenFile;
    vfs.xDelete = DeleteFile;
    vfs.xAccess = AccessFile;
    vfs.xFullPathname = FullName;
    vfs.xRandomness = usual->xRandomness;
    vfs.xSleep = usual->xSleep;
    vfs.xCurrentTime = usual->xCurrentTime;
    return sqlite3_vfs_register(&vfs, /*makeDflt=*/0) == SQLITE_OK;
  }();
  return registered;
}

// Permits only reading of tables by this program's own queries.
int Authorize(void*, int action, const char*, const char* second, const char*,
              const char* within) {
  // A view or a trigger of the file makes the access.
  if (within != nullptr) return SQLITE_DENY;
  if (action == SQLITE_SELECT || action == SQLITE_READ) return SQLITE_OK;
  if (action == SQLITE_FUNCTION && second != nullptr) {
    for (const char* known : {"count", "total", "length"}) {
      if (sqlite3_stricmp(second, known) == 0) return SQLITE_OK;
    }
  }
  return SQLITE_DENY;
}

}  // namespace

SqliteRows::SqliteRows(SqliteRows&& other) noexcept
    : database_(other.database_),
      statement_(std::exchange(other.statement_, nullptr)) {}

SqliteRows::~SqliteRows() { sqlite3_finalize(statement_); }

absl::StatusOr<bool> SqliteRows::Next() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return database_->Fault();
}

SqliteRows& SqliteRows::Bind(int parameter, int64_t value) {
  sqlite3_bind_int64(statement_, parameter, value);
  return *this;
}
SqliteRows& SqliteRows::Bind(int parameter, absl::string_view value) {
  sqlite3_bind_text(statement_, parameter, value.empty() ? "" : value.data(),
                    static_cast<int>(value.size()), SQLITE_TRANSIENT);
  return *this;
}

bool SqliteRows::IsNull(int column) const {
  return sqlite3_column_type(statement_, column) == SQLITE_NULL;
}
absl::string_view SqliteRows::Text(int column) const {
  const auto* const text =
      reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  if (text == nullptr) return {};
  return {text, static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}
int64_t SqliteRows::Int(int column) const {
  return sqlite3_column_int64(statement_, column);
}
double SqliteRows::Real(int column) const {
  return sqlite3_column_double(statement_, column);
}
int SqliteRows::ColumnOf(absl::string_view name) const {
  const int count = sqlite3_column_count(statement_);
  for (int i = 0; i < count; ++i) {
    const char* const found = sqlite3_column_name(statement_, i);
    if (found != nullptr && name == found) return i;
  }
  return -1;
}
std::set<std::string> SqliteRows::ColumnNames() const {
  std::set<std::string> names;
  const int count = sqlite3_column_count(statement_);
  for (int i = 0; i < count; ++i) {
    const char* const found = sqlite3_column_name(statement_, i);
    if (found != nullptr) names.insert(found);
  }
  return names;
}

ReadOnlySqlite::ReadOnlySqlite(std::string name, const std::atomic<bool>* gone)
    : name_(std::move(name)), gone_(gone) {}

ReadOnlySqlite::~ReadOnlySqlite() { sqlite3_close(db_); }

absl::StatusOr<std::unique_ptr<ReadOnlySqlite>> ReadOnlySqlite::Open(
    int fd, std::string name, absl::Duration timeout,
    const std::atomic<bool>* gone) {
  if (!RegisterVfs()) {
    return absl::InternalError("SQLite takes no further kind of file");
  }
  std::unique_ptr<ReadOnlySqlite> database(
      new ReadOnlySqlite(std::move(name), gone));
  database->deadline_ns_ = NowNs() + absl::ToInt64Nanoseconds(timeout);
  if (sqlite3_open_v2(absl::StrCat(fd).c_str(), &database->db_,
                      SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX,
                      kVfsName) != SQLITE_OK) {
    return database->Fault();
  }
  sqlite3* const db = database->db_;
  sqlite3_limit(db, SQLITE_LIMIT_LENGTH, kMostValueBytes);
  sqlite3_limit(db, SQLITE_LIMIT_ATTACHED, 0);
  sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_progress_handler(db, kStepsPerLook, OnProgress, database.get());
  if (sqlite3_exec(db,
                   "PRAGMA cell_size_check = ON; PRAGMA cache_size = -65536; "
                   "PRAGMA temp_store = MEMORY",
                   nullptr, nullptr, nullptr) != SQLITE_OK) {
    return database->Fault();
  }
  // Set last, because it denies the PRAGMA statements above.
  sqlite3_set_authorizer(db, Authorize, nullptr);
  return database;
}

int ReadOnlySqlite::OnProgress(void* self) {
  const auto* const database = static_cast<ReadOnlySqlite*>(self);
  return NowNs() > database->deadline_ns_ ||
                 (database->gone_ != nullptr && *database->gone_)
             ? 1
             : 0;
}

absl::StatusOr<SqliteRows> ReadOnlySqlite::Query(const std::string& sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(db_, sql.c_str(), -1, &statement, nullptr) !=
      SQLITE_OK) {
    return Fault();
  }
  return SqliteRows(this, statement);
}

absl::Status ReadOnlySqlite::Fault() const {
  if (db_ == nullptr) return absl::ResourceExhaustedError("out of memory");
  const std::string text = absl::StrCat(name_, ": ", sqlite3_errmsg(db_));
  switch (sqlite3_errcode(db_)) {
    case SQLITE_INTERRUPT:
      return absl::DeadlineExceededError(
          absl::StrCat(name_, ": it takes too long to read"));
    case SQLITE_NOMEM:
    case SQLITE_TOOBIG:
      return absl::ResourceExhaustedError(text);
    case SQLITE_NOTADB:
      return absl::InvalidArgumentError(absl::StrCat(
          name_, ": unsupported file: it is not an SQLite database"));
    case SQLITE_AUTH:
    case SQLITE_ERROR:
      return absl::InvalidArgumentError(
          absl::StrCat(name_, ": unsupported file: ", sqlite3_errmsg(db_)));
    default:
      return absl::DataLossError(text);
  }
}

}  // namespace rankprobe
