// SPDX-License-Identifier: Apache-2.0
// --web-listen: the page of `rankprobe view`, served by the collector itself.
// It uses TLS if the main port does; the collector's tokens decide who may view
// and who may switch. Without tokens, on loopback, every client may, as on the
// main port.
//
// A browser's requests are passed to the collector's services by a channel
// within this process, so that they wait where a command of `rankprobe` would,
// in the pools of queries, and never where ranks do. A browser that reads
// slowly holds a thread of the page and nothing else.
//
// Ownership: one per server; the Logger outlives it. Threads: Listen, Serve and
// Stop from one thread.
#ifndef RANKPROBE_COLLECTOR_SERVER_WEB_PAGE_H_
#define RANKPROBE_COLLECTOR_SERVER_WEB_PAGE_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/auth/auditor.h"
#include "collector/auth/authorizer.h"
#include "common/base/logger.h"
#include "web/jobs/job_runner.h"

namespace rankprobe {

class WebPage {
 public:
  struct Options {
    // ADDRESS:PORT or localhost:PORT; port 0 takes a free one.
    std::string listen;
    // Further host names in URLs of the page.
    std::vector<std::string> names;
    // PEM files; empty: plain text, and loopback only.
    std::string tls_cert;
    std::string tls_key;
    // Directory whose graph databases and dumps are shown; empty: none.
    std::string root;
  };

  // Listens, but accepts no connection before Serve. UNAVAILABLE if the address
  // cannot be listened on; INVALID_ARGUMENT for an unusable file or directory.
  static absl::StatusOr<std::unique_ptr<WebPage>> Listen(
      const Options& options, std::shared_ptr<const Authorizer> authorizer,
      const Logger* logger);
  virtual ~WebPage() = default;

  struct Services {
    // Channel to the services within this process.
    std::shared_ptr<grpc::Channel> channel;
    // The address that ranks use, for display.
    std::string collector;
    // Outlives the page.
    const Auditor* auditor = nullptr;
    // Exports a run of the archive to files; see page_dumps.h.
    FetchJobDump fetch;
    // Directory for files of jobs. Created empty: earlier contents are deleted.
    std::string job_directory;
    // The disk's reserve for ranks.
    uint64_t min_free_bytes = 0;
  };
  virtual absl::Status Serve(Services services) = 0;
  // Takes no more requests, and ends the current ones.
  virtual void Stop() = 0;
  // For example "https://node0:8443/".
  virtual std::string address() const = 0;

  // Returns the arguments for its channel.
  static grpc::ChannelArguments Arguments();
  // INVALID_ARGUMENT if `listen` is not such an address.
  static absl::Status CheckAddress(const std::string& listen);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_WEB_PAGE_H_
