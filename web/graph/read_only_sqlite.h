// SPDX-License-Identifier: Apache-2.0
// Read-only access to an untrusted SQLite database by its descriptor: SQLite
// opens nothing by name, writes nothing, takes no lock and finds no journal.
// The contents of the file are not trusted: only tables are read, none of its
// views, triggers and functions run, and a query ends at its deadline. One
// thread.
#ifndef RANKPROBE_WEB_GRAPH_READ_ONLY_SQLITE_H_
#define RANKPROBE_WEB_GRAPH_READ_ONLY_SQLITE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

struct sqlite3;
struct sqlite3_stmt;

namespace rankprobe {

class ReadOnlySqlite;

// Rows of one query. Texts are valid until the next call of Next().
class SqliteRows {
 public:
  SqliteRows(SqliteRows&& other) noexcept;
  SqliteRows& operator=(SqliteRows&&) = delete;
  ~SqliteRows();

  // Moves to the next row; false if there is none. Parameters are bound before
  // the first call.
  absl::StatusOr<bool> Next();
  SqliteRows& Bind(int parameter, int64_t value);
  SqliteRows& Bind(int parameter, absl::string_view value);

  bool IsNull(int column) const;
  // Returns a value of any type as text; for a blob, its bytes.
  absl::string_view Text(int column) const;
  // Returns 0 for a value that is not a number.
  int64_t Int(int column) const;
  double Real(int column) const;
  // Returns -1 if there is no column of this name.
  int ColumnOf(absl::string_view name) const;
  std::set<std::string> ColumnNames() const;

 private:
  friend class ReadOnlySqlite;
  SqliteRows(ReadOnlySqlite* database, sqlite3_stmt* statement)
      : database_(database), statement_(statement) {}

  ReadOnlySqlite* const database_;
  sqlite3_stmt* statement_;
};

class ReadOnlySqlite {
 public:
  // Opens the database. The caller owns the descriptor, which outlives the
  // object. `name` is used in messages. Returns INVALID_ARGUMENT if the file is
  // not a database.
  static absl::StatusOr<std::unique_ptr<ReadOnlySqlite>> Open(
      int fd, std::string name, absl::Duration timeout,
      const std::atomic<bool>* gone);
  ReadOnlySqlite(const ReadOnlySqlite&) = delete;
  ReadOnlySqlite& operator=(const ReadOnlySqlite&) = delete;
  ~ReadOnlySqlite();

  absl::StatusOr<SqliteRows> Query(const std::string& sql);
  const std::string& name() const { return name_; }

 private:
  friend class SqliteRows;
  ReadOnlySqlite(std::string name, const std::atomic<bool>* gone);
  absl::Status Fault() const;
  static int OnProgress(void* self);

  const std::string name_;
  const std::atomic<bool>* const gone_;  // or null
  int64_t deadline_ns_ = 0;
  sqlite3* db_ = nullptr;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_GRAPH_READ_ONLY_SQLITE_H_
