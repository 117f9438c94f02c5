// SPDX-License-Identifier: Apache-2.0
// The .vis.db file that the graph view opens: tb_nodes, tb_stack, tb_config
// (docs/analysis.md, "Graph database"). It is written under a temporary name
// and renamed when Finish succeeds. Used by one thread.
#ifndef RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_DB_H_
#define RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_DB_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/io/file_system.h"

struct sqlite3;
struct sqlite3_stmt;

namespace rankprobe::analysis {

struct VisNode {
  std::string id;
  std::string graph_id;
  int64_t order = 0;
  std::string name;
  int kind = 0;
  std::string parent;
  std::string children;  // JSON or empty
  std::optional<double> precision_index;
  std::string overflow_level;  // empty: none
  int64_t micro_step = 0;
  std::string matched_link;  // JSON
  std::string stack_id;
  std::string merge_info;  // JSON or empty
  std::string input;
  std::string output;
  std::string source;    // "NPU" or "Bench"
  std::string data_dir;  // empty: none
  int64_t step = 0;
  int64_t rank = 0;
};

struct VisConfig {
  bool compare = false;
  std::string task;
  std::optional<std::string> tool_tip;
  int64_t micro_steps = 1;
  bool overflow_check = false;
  std::string node_colors;
  std::string ranks;
  std::string steps;
};

class VisDb {
 public:
  static absl::StatusOr<std::unique_ptr<VisDb>> Create(FileSystem* file_system,
                                                       std::string path);
  VisDb(const VisDb&) = delete;
  VisDb& operator=(const VisDb&) = delete;
  ~VisDb();

  // Nodes are inserted by a thread that this object owns, so an error of an
  // insertion may be returned by a later call.
  absl::Status AddNode(VisNode node);
  absl::Status AddStack(const std::string& id, const std::string& frames);
  absl::Status SetDistributed(const std::string& node_id,
                              const std::string& links);
  absl::Status SetConfig(const VisConfig& config);
  // Completes the file and renames it to its final name.
  absl::Status Finish();

 private:
  VisDb(FileSystem* file_system, std::string path);
  absl::Status Open();
  absl::Status Run(const char* sql);
  absl::Status Step(sqlite3_stmt* statement);
  absl::Status Fault() const;
  void Close();
  absl::Status Insert(absl::Span<const VisNode> nodes);
  // Binds the parameters from base + 1 on of `statement`, which must be
  // executed before `node` is destroyed.
  static void BindRow(sqlite3_stmt* statement, int base, const VisNode& node);
  void InsertBatches();
  absl::Status HandOver();
  // Waits until all nodes are inserted and the thread is idle, so that the
  // caller may use the statements.
  absl::Status Drain();

  FileSystem* const file_system_;
  const std::string path_;
  const std::string temporary_;
  sqlite3* db_ = nullptr;
  sqlite3_stmt* insert_node_ = nullptr;
  sqlite3_stmt* insert_nodes_ = nullptr;
  sqlite3_stmt* insert_stack_ = nullptr;
  sqlite3_stmt* update_links_ = nullptr;
  bool finished_ = false;

  std::vector<VisNode> batch_;  // not passed to the thread yet
  absl::Mutex mutex_;
  std::deque<std::vector<VisNode>> queue_ ABSL_GUARDED_BY(mutex_);
  bool inserting_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status inserted_ ABSL_GUARDED_BY(mutex_);
  std::thread inserter_;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_DB_H_
