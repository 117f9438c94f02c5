// SPDX-License-Identifier: Apache-2.0
// What `rankprobe view` runs: the page and its API on a port of 127.0.0.1, for
// whoever knows the token in its address. A collector, a directory, or both.
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
  // Serves when it returns; a collector need not be there. `port` 0: any that
  // is free. FAILED_PRECONDITION: the port is taken or may not be used;
  // NOT_FOUND: the directory of `graphs` is not there.
  static absl::StatusOr<std::unique_ptr<ViewServer>> Start(
      uint16_t port, GatewayOptions options, GraphOptions graphs = {},
      JobRunnerOptions jobs = {});
  ViewServer(const ViewServer&) = delete;
  ViewServer& operator=(const ViewServer&) = delete;
  // Ends what is being answered within a second or two, and jobs within some.
  ~ViewServer() = default;

  // "http://127.0.0.1:8080/#token=..": a browser keeps what is behind the # to
  // itself.
  const std::string& address() const { return address_; }

 private:
  ViewServer(GatewayOptions options, std::unique_ptr<GraphService> graphs,
             JobRunnerOptions jobs)
      : file_system_(NewPosixFileSystem()),
        gateway_(std::move(options)),
        graphs_(std::move(graphs)),
        tensors_(&gateway_),
        jobs_(std::move(jobs), file_system_.get(), &clock_) {}

  void Answer(const HttpRequest& request, HttpReply* reply);

  const std::unique_ptr<FileSystem> file_system_;
  SystemClock clock_;
  const Gateway gateway_;
  const std::unique_ptr<GraphService> graphs_;
  TensorApi tensors_;
  JobsApi jobs_;
  std::string address_;
  // Uses what is above.
  std::unique_ptr<HttpServer> server_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_VIEW_SERVER_H_
