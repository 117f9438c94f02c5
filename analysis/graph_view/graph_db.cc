// SPDX-License-Identifier: Apache-2.0
#include "analysis/graph_view/graph_db.h"

#include <sqlite3.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

constexpr char kSchema[] = R"(
CREATE TABLE tb_nodes (
    id TEXT PRIMARY KEY,
    graph_id TEXT NOT NULL,
    node_order INTEGER NOT NULL,
    node_name TEXT NOT NULL,
    node_type TEXT NOT NULL,
    up_node TEXT,
    sub_nodes TEXT,
    precision_index INTEGER,
    overflow_level TEXT,
    micro_step_id INTEGER NOT NULL,
    matched_node_link TEXT,
    stack_id TEXT,
    parallel_merge_info TEXT,
    matched_distributed TEXT,
    modified INTEGER NOT NULL,
    input_data TEXT,
    output_data TEXT,
    data_source TEXT,
    dump_data_dir TEXT,
    step INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    is_distributed INTEGER
);
CREATE TABLE tb_stack (
    id TEXT PRIMARY KEY,
    stack_info TEXT
);
CREATE TABLE tb_config (
    id TEXT PRIMARY KEY,
    graph_type TEXT NOT NULL,
    task TEXT,
    tool_tip TEXT,
    micro_steps INTEGER,
    overflow_check INTEGER,
    node_colors TEXT NOT NULL,
    rank_list TEXT NOT NULL,
    step_list TEXT NOT NULL
);
)";

// The indexes are created before the rows. Rows arrive graph by graph, nearly
// in the order of most indexes, while an index that is created later must read
// the complete table again.
constexpr char kIndexes[] = R"(
CREATE INDEX index1 ON tb_nodes
    (step, rank, data_source, up_node, node_order);
CREATE INDEX index2 ON tb_nodes (step, rank, data_source, node_name);
CREATE INDEX index3 ON tb_nodes (step, rank, data_source, node_order);
CREATE INDEX index4 ON tb_nodes (step, rank, node_order);
CREATE INDEX index5 ON tb_nodes (step, rank, micro_step_id, node_order);
CREATE INDEX index6 ON tb_nodes (step, rank, modified, matched_node_link);
CREATE INDEX index7 ON tb_nodes (is_distributed);
)";

constexpr size_t kBatchNodes = 128;
// Rows of one statement: SQLite then opens the nine B-trees of a row once for
// all of them. An error discards the complete file, so no statement is undone.
constexpr size_t kRowsAtOnce = 32;
constexpr absl::string_view kInsert = "INSERT OR ROLLBACK INTO tb_nodes VALUES";
constexpr absl::string_view kRow =
    "(?,?,?,?,?,?,?,?,?,?,?,?,?,'{}',0,?,?,?,?,?,?,?)";
constexpr int kRowParameters = 20;
constexpr size_t kMostBatches = 4;

// The file is not visible before it is complete, so it needs no journal. A row
// has 1 to 10 KB; pages of 32 KiB hold it without a chain of overflow pages.
constexpr char kPragmas[] =
    "PRAGMA page_size = 32768; PRAGMA journal_mode = OFF; "
    "PRAGMA synchronous = OFF; PRAGMA locking_mode = EXCLUSIVE; "
    "PRAGMA secure_delete = OFF; PRAGMA cache_size = -32768;";

void Bind(sqlite3_stmt* statement, int column, absl::string_view text) {
  sqlite3_bind_text(statement, column, text.empty() ? "" : text.data(),
                    static_cast<int>(text.size()), SQLITE_STATIC);
}
void BindOrNull(sqlite3_stmt* statement, int column, absl::string_view text) {
  if (text.empty()) {
    sqlite3_bind_null(statement, column);
  } else {
    Bind(statement, column, text);
  }
}

absl::string_view KindText(int kind) {
  return kind == 0 ? "0" : kind == 1 ? "1" : "9";
}

}  // namespace

VisDb::VisDb(FileSystem* file_system, std::string path)
    : file_system_(file_system),
      path_(std::move(path)),
      temporary_(absl::StrCat(path_, ".part")) {}

VisDb::~VisDb() {
  Close();
  if (!finished_) (void)file_system_->Delete(temporary_);
}

void VisDb::Close() {
  if (inserter_.joinable()) {
    {
      absl::MutexLock lock(&mutex_);
      closing_ = true;
    }
    inserter_.join();
  }
  for (sqlite3_stmt** statement :
       {&insert_node_, &insert_nodes_, &insert_stack_, &update_links_}) {
    sqlite3_finalize(*statement);
    *statement = nullptr;
  }
  if (db_ != nullptr) sqlite3_close(db_);
  db_ = nullptr;
}

absl::StatusOr<std::unique_ptr<VisDb>> VisDb::Create(FileSystem* file_system,
                                                     std::string path) {
  std::unique_ptr<VisDb> db(new VisDb(file_system, std::move(path)));
  RP_RETURN_IF_ERROR(db->Open());
  return db;
}

absl::Status VisDb::Fault() const {
  return absl::UnavailableError(
      absl::StrCat(temporary_, ": ",
                   db_ == nullptr ? "out of memory" : sqlite3_errmsg(db_)));
}

absl::Status VisDb::Run(const char* sql) {
  return sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) == SQLITE_OK
             ? absl::OkStatus()
             : Fault();
}

absl::Status VisDb::Step(sqlite3_stmt* statement) {
  const int code = sqlite3_step(statement);
  sqlite3_reset(statement);
  return code == SQLITE_DONE ? absl::OkStatus() : Fault();
}

absl::Status VisDb::Open() {
  if (file_system_->Exists(temporary_)) (void)file_system_->Delete(temporary_);
  {
    // Creates the file with this project's file mode, not SQLite's.
    RP_ASSIGN_OR_RETURN(const auto file,
                        file_system_->OpenForWrite(
                            temporary_, FileSystem::OpenMode::kCreateNew));
    RP_RETURN_IF_ERROR(file->Close());
  }
  // Only one thread at a time uses the connection (Drain).
  if (sqlite3_open_v2(
          temporary_.c_str(), &db_,
          SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
          nullptr) != SQLITE_OK) {
    return Fault();
  }
  RP_RETURN_IF_ERROR(Run(kPragmas));
  RP_RETURN_IF_ERROR(Run("BEGIN"));
  RP_RETURN_IF_ERROR(Run(kSchema));
  RP_RETURN_IF_ERROR(Run(kIndexes));
  const auto prepare = [this](const std::string& sql, sqlite3_stmt** out) {
    return sqlite3_prepare_v2(db_, sql.c_str(), -1, out, nullptr) == SQLITE_OK
               ? absl::OkStatus()
               : Fault();
  };
  std::string rows = absl::StrCat(kInsert, kRow);
  RP_RETURN_IF_ERROR(prepare(rows, &insert_node_));
  for (size_t i = 1; i < kRowsAtOnce; ++i) absl::StrAppend(&rows, ",", kRow);
  RP_RETURN_IF_ERROR(prepare(rows, &insert_nodes_));
  RP_RETURN_IF_ERROR(
      prepare("INSERT INTO tb_stack VALUES (?,?)", &insert_stack_));
  RP_RETURN_IF_ERROR(
      prepare("UPDATE tb_nodes SET matched_distributed = ? WHERE id = ?",
              &update_links_));
  inserter_ = std::thread([this] { InsertBatches(); });
  return absl::OkStatus();
}

absl::Status VisDb::AddNode(VisNode node) {
  batch_.push_back(std::move(node));
  return batch_.size() < kBatchNodes ? absl::OkStatus() : HandOver();
}

absl::Status VisDb::HandOver() {
  absl::MutexLock lock(&mutex_);
  // Waits while the inserting thread is behind, which bounds the memory of the
  // queue.
  const auto has_room = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return queue_.size() < kMostBatches;
  };
  mutex_.Await(absl::Condition(&has_room));
  if (!batch_.empty()) queue_.push_back(std::move(batch_));
  batch_.clear();
  return inserted_;
}

absl::Status VisDb::Drain() {
  RP_RETURN_IF_ERROR(HandOver());
  absl::MutexLock lock(&mutex_);
  const auto is_done = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return queue_.empty() && !inserting_;
  };
  mutex_.Await(absl::Condition(&is_done));
  return inserted_;
}

void VisDb::InsertBatches() {
  const auto has_work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return !queue_.empty() || closing_;
  };
  for (;;) {
    std::vector<VisNode> batch;
    bool failed = false;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (queue_.empty()) return;
      batch = std::move(queue_.front());
      queue_.pop_front();
      inserting_ = true;
      // After an error, and if the object is destroyed before Finish(), the
      // file is discarded, so the remaining batches are dropped.
      failed = !inserted_.ok() || closing_;
    }
    const absl::Status status = failed ? absl::OkStatus() : Insert(batch);
    absl::MutexLock lock(&mutex_);
    inserting_ = false;
    inserted_.Update(status);
  }
}

absl::Status VisDb::Insert(absl::Span<const VisNode> nodes) {
  while (nodes.size() >= kRowsAtOnce) {
    for (size_t i = 0; i < kRowsAtOnce; ++i) {
      BindRow(insert_nodes_, static_cast<int>(i) * kRowParameters, nodes[i]);
    }
    RP_RETURN_IF_ERROR(Step(insert_nodes_));
    nodes.remove_prefix(kRowsAtOnce);
  }
  for (const VisNode& node : nodes) {
    BindRow(insert_node_, 0, node);
    RP_RETURN_IF_ERROR(Step(insert_node_));
  }
  return absl::OkStatus();
}

void VisDb::BindRow(sqlite3_stmt* s, int base, const VisNode& node) {
  Bind(s, base + 1, node.id);
  Bind(s, base + 2, node.graph_id);
  sqlite3_bind_int64(s, base + 3, node.order);
  Bind(s, base + 4, node.name);
  Bind(s, base + 5, KindText(node.kind));
  Bind(s, base + 6, node.parent);
  Bind(s, base + 7, node.children);
  if (node.precision_index.has_value()) {
    sqlite3_bind_double(s, base + 8, *node.precision_index);
  } else {
    sqlite3_bind_null(s, base + 8);
  }
  BindOrNull(s, base + 9, node.overflow_level);
  sqlite3_bind_int64(s, base + 10, node.micro_step);
  Bind(s, base + 11, node.matched_link);
  Bind(s, base + 12, node.stack_id);
  Bind(s, base + 13, node.merge_info);
  Bind(s, base + 14, node.input);
  Bind(s, base + 15, node.output);
  Bind(s, base + 16, node.source);
  BindOrNull(s, base + 17, node.data_dir);
  sqlite3_bind_int64(s, base + 18, node.step);
  sqlite3_bind_int64(s, base + 19, node.rank);
  const absl::string_view name = node.name;
  sqlite3_bind_int(s, base + 20, name.substr(0, 11) == "Distributed" ? 1 : 0);
}

absl::Status VisDb::AddStack(const std::string& id, const std::string& frames) {
  RP_RETURN_IF_ERROR(Drain());
  Bind(insert_stack_, 1, id);
  Bind(insert_stack_, 2, frames);
  return Step(insert_stack_);
}

absl::Status VisDb::SetDistributed(const std::string& node_id,
                                   const std::string& links) {
  RP_RETURN_IF_ERROR(Drain());
  Bind(update_links_, 1, links);
  Bind(update_links_, 2, node_id);
  return Step(update_links_);
}

absl::Status VisDb::SetConfig(const VisConfig& config) {
  RP_RETURN_IF_ERROR(Drain());
  sqlite3_stmt* s = nullptr;
  if (sqlite3_prepare_v2(db_,
                         "INSERT INTO tb_config VALUES ('1',?,?,?,?,?,?,?,?)",
                         -1, &s, nullptr) != SQLITE_OK) {
    return Fault();
  }
  Bind(s, 1, config.compare ? "compare" : "build");
  Bind(s, 2, config.task);
  if (config.tool_tip.has_value()) {
    Bind(s, 3, *config.tool_tip);
  } else {
    sqlite3_bind_null(s, 3);
  }
  sqlite3_bind_int64(s, 4, config.micro_steps);
  sqlite3_bind_int(s, 5, config.overflow_check ? 1 : 0);
  Bind(s, 6, config.node_colors);
  Bind(s, 7, config.ranks);
  Bind(s, 8, config.steps);
  const absl::Status status = Step(s);
  sqlite3_finalize(s);
  return status;
}

absl::Status VisDb::Finish() {
  RP_RETURN_IF_ERROR(Drain());
  RP_RETURN_IF_ERROR(Run("COMMIT"));
  Close();
  RP_RETURN_IF_ERROR(file_system_->Rename(temporary_, path_));
  finished_ = true;
  return absl::OkStatus();
}

}  // namespace rankprobe::analysis
