// SPDX-License-Identifier: Apache-2.0
// The page and its API. `rankprobe view` serves a collector, a directory, or
// both on a port of 127.0.0.1, for users who know the token in its address. A
// collector (--web-listen) serves it for users who have a token of the
// collector.
#ifndef RANKPROBE_WEB_VIEW_SERVER_H_
#define RANKPROBE_WEB_VIEW_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/io/file_system.h"
#include "web/gateway/gateway.h"
#include "web/graph/graph_service.h"
#include "web/http/http_server.h"
#include "web/jobs/jobs_api.h"
#include "web/tensor/tensor_api.h"

namespace rankprobe {

class ViewServer {
 public:
  // Serves when it returns; a collector need not be running. `port` 0 selects
  // any free port. Returns FAILED_PRECONDITION if the port is in use or not
  // permitted, NOT_FOUND if the directory of `graphs` does not exist.
  static absl::StatusOr<std::unique_ptr<ViewServer>> Start(
      uint16_t port, GatewayOptions options, GraphOptions graphs = {},
      JobRunnerOptions jobs = {});
  // Serves on a server that already listens. `options` has the channel and the
  // callers.
  static absl::StatusOr<std::unique_ptr<ViewServer>> Serve(
      std::unique_ptr<HttpServer> server, GatewayOptions options,
      TensorOptions tensors, GraphOptions graphs = {},
      JobRunnerOptions jobs = {});
  ViewServer(const ViewServer&) = delete;
  ViewServer& operator=(const ViewServer&) = delete;
  // Ends answers in progress within a second or two, and jobs within a few
  // seconds.
  ~ViewServer() = default;

  // Returns "http://127.0.0.1:8080/#token=..". A browser does not send the part
  // after the #.
  const std::string& address() const { return address_; }

 private:
  ViewServer(GatewayOptions options, std::unique_ptr<GraphService> graphs,
             TensorOptions tensors, JobRunnerOptions jobs);

  // Lets jobs read the dumps below the root.
  static JobRunnerOptions WithRoot(JobRunnerOptions jobs,
                                   const GraphService* graphs);
  void Serve(std::unique_ptr<HttpServer> server);
  void Answer(const HttpRequest& request, HttpReply* reply);
  void AnswerApi(absl::string_view method, const HttpRequest& request,
                 HttpReply* reply);
  // Answers a request whose caller has the right to make it.
  void AnswerChecked(absl::string_view method, const HttpRequest& request,
                     HttpReply* reply);
  std::string AboutJson(absl::string_view token) const;

  const std::unique_ptr<FileSystem> file_system_;
  SystemClock clock_;
  const std::string collector_;
  const bool has_jobs_;
  const Gateway gateway_;
  const std::unique_ptr<GraphService> graphs_;
  TensorApi tensors_;
  JobsApi jobs_;
  std::string address_;
  // Uses the members above.
  std::unique_ptr<HttpServer> server_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_VIEW_SERVER_H_
