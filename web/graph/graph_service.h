// SPDX-License-Identifier: Apache-2.0
// Graphs over HTTP: databases and dumps below the root, and graphs made from
// runs of the archive.
//
//   POST /api/v1/Graph/{Method}   the request as JSON (graph_requests.h)
//
//   List         databases and dumps below the root
//   Open         the description of a database
//   Graph        all nodes of a step and rank, as columns
//   Children     the nodes of one level
//   Node         values, stack and links of a node
//   Summary      the number of faults by step and rank
//   Match        verdicts of pairs of nodes that were matched by hand
//   LoadMapping, SaveMapping   those pairs in a file next to the database
//   Build        a graph of dumps and runs: lines of progress, then its name
//
// The service keeps no state of a client, so pages never see the state of each
// other. It never writes to a database. An error is {"error"} as in gateway.h.
// Thread-safe.
#ifndef RANKPROBE_WEB_GRAPH_GRAPH_SERVICE_H_
#define RANKPROBE_WEB_GRAPH_GRAPH_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "web/graph/graph_builder.h"
#include "web/graph/graph_database.h"
#include "web/graph/graph_root.h"
#include "web/graph/one_thread.h"
#include "web/http/http_message.h"

namespace rankprobe {

struct GraphOptions {
  // Empty if there is no root.
  std::string root;
  FetchRun fetch_run;
  // Nothing below the root is written, and this process builds no graphs.
  bool read_only = false;
  // For a process with more important work: one answer is made at a time,
  // within these limits, and the bytes that clients have not read yet are
  // bounded.
  bool one_at_a_time = false;
  GraphLimits limits;
  uint64_t max_untaken_bytes = UINT64_MAX;
  // Time limit for what one request reads from a database.
  absl::Duration query_timeout = absl::Seconds(60);
};

class GraphService {
 public:
  static absl::StatusOr<std::unique_ptr<GraphService>> Make(
      GraphOptions options);
  GraphService(const GraphService&) = delete;
  GraphService& operator=(const GraphService&) = delete;

  // Answers a request for a method such as "Open". Blocks.
  void Answer(absl::string_view method, absl::string_view body,
              HttpReply* reply) const;
  // Returns the path for a caller that reads dumps below the root in another
  // process.
  absl::StatusOr<std::string> FindDirectory(absl::string_view path) const;
  // Sets the function that opens "job:NAME". Called before requests are
  // answered.
  using OpenJobFile =
      std::function<absl::StatusOr<Descriptor>(absl::string_view name)>;
  void SetJobFiles(OpenJobFile open) { open_job_file_ = std::move(open); }
  bool read_only() const { return options_.read_only; }
  // Returns "" if there is no root.
  std::string root() const {
    return root_ == nullptr ? std::string() : root_->directory();
  }

 private:
  struct Opened;
  GraphService(GraphOptions options, std::unique_ptr<GraphRoot> root);

  absl::StatusOr<std::string> AnswerOf(absl::string_view method,
                                       const GraphRequest& request,
                                       const std::atomic<bool>* gone) const;
  absl::StatusOr<Opened> OpenDatabase(const GraphRequest& request,
                                      const std::atomic<bool>* gone) const;
  absl::StatusOr<std::string> ListJson() const;
  static absl::StatusOr<std::string> MatchJson(const GraphRequest& request,
                                               GraphDatabase* database);
  absl::StatusOr<std::string> LoadMapping(const GraphRequest& request) const;
  absl::StatusOr<std::string> SaveMapping(const GraphRequest& request) const;
  void Build(const GraphRequest& request, HttpReply* reply) const;
  // Sends the complete answer from here instead of leaving it to the
  // connection: waits while the client is slow.
  void SendLarge(const std::string& answer, HttpReply* reply) const;

  const GraphOptions options_;
  const std::unique_ptr<GraphRoot> root_;
  const std::unique_ptr<GraphBuilder> builder_;
  OpenJobFile open_job_file_;
  // Null unless `one_at_a_time` is set.
  const std::unique_ptr<OneThread> maker_;
  mutable std::atomic<uint64_t> untaken_bytes_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_GRAPH_GRAPH_SERVICE_H_
