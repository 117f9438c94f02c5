// SPDX-License-Identifier: Apache-2.0
// A graph database (.vis.db) of rankprobe or msprobe as JSON for a page. Its
// contents are not trusted: names are text, a parent that does not exist or is
// below its own child is counted as a fault, columns may hold any value. One
// thread.
//
// Failures: INVALID_ARGUMENT "unsupported file" for a file with other tables or
// without a required column; NOT_FOUND for a step, rank or node that does not
// exist; RESOURCE_EXHAUSTED for a graph of more than kMostGraphNodes.
#ifndef RANKPROBE_WEB_GRAPH_GRAPH_DATABASE_H_
#define RANKPROBE_WEB_GRAPH_GRAPH_DATABASE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "web/graph/read_only_sqlite.h"

namespace rankprobe {

// Limit for one side of one step and rank.
inline constexpr size_t kMostGraphNodes = 1'000'000;

// Limits for one side of a graph.
struct GraphLimits {
  size_t nodes = kMostGraphNodes;
  size_t bytes = 256 << 20;
};

class GraphDatabase {
 public:
  static absl::StatusOr<std::unique_ptr<GraphDatabase>> Open(
      int fd, std::string name, absl::Duration timeout,
      const std::atomic<bool>* gone);
  GraphDatabase(const GraphDatabase&) = delete;
  GraphDatabase& operator=(const GraphDatabase&) = delete;

  // Returns a description of the database: {"compare", "task", "toolTip",
  // "microSteps", "overflowCheck", "steps", "ranks"}.
  absl::StatusOr<std::string> AboutJson();
  // Sets the limits of GraphJson.
  void SetLimits(const GraphLimits& limits) { limits_ = limits; }
  // Returns all nodes of a step and rank, in the order of the database, as
  // columns: {"sides": [{"source", "names", "parents", "kinds", "precision",
  // "overflow", "microSteps", "partners", "flags"}], "faults"}.
  absl::StatusOr<std::string> GraphJson(int64_t step, int64_t rank);
  // Returns the nodes of one level: {"names", "order"}. An empty `parent`
  // selects the roots.
  absl::StatusOr<std::string> ChildrenJson(int64_t step, int64_t rank,
                                           absl::string_view side,
                                           absl::string_view parent);
  // Returns values, stack and links, which the columns do not have.
  absl::StatusOr<std::string> NodeJson(int64_t step, int64_t rank,
                                       absl::string_view side,
                                       absl::string_view node);
  // Returns the number of nodes and of bad nodes of each step and rank.
  absl::StatusOr<std::string> SummaryJson();

  struct Values {
    int kind = 0;
    std::string input;
    std::string output;
  };
  absl::StatusOr<Values> ValuesOf(int64_t step, int64_t rank,
                                  absl::string_view side,
                                  absl::string_view node);
  // Returns "summary", "md5", "all" or "structure"; empty in a build.
  absl::StatusOr<std::string> Task();

 private:
  explicit GraphDatabase(std::unique_ptr<ReadOnlySqlite> database)
      : database_(std::move(database)) {}
  absl::Status CheckTables();
  absl::StatusOr<std::set<std::string>> ColumnsOf(absl::string_view table);
  // Returns the name of a column, or `instead` if the database does not have
  // it.
  std::string Column(absl::string_view name, absl::string_view instead) const;

  const std::unique_ptr<ReadOnlySqlite> database_;
  std::set<std::string> node_columns_;
  GraphLimits limits_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_GRAPH_GRAPH_DATABASE_H_
