// SPDX-License-Identifier: Apache-2.0
// --web-listen: the page of `rankprobe view`, served by the collector itself. It
// speaks TLS where the main port does; who may look and who may switch is what the
// collector's tokens say. Without any, on loopback, everybody may, as there.
//
// What a browser asks goes to the collector's services by a channel within this
// process, so that it waits where a command of `rankprobe` would, in the pools of
// queries, and never where ranks do. A browser that reads slowly holds a thread of
// the page's and nothing else.
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
    // Further names in addresses of the page.
    std::vector<std::string> names;
    // PEM files; empty: plain text, and loopback only.
    std::string tls_cert;
    std::string tls_key;
    // Its graph databases and dumps are shown; empty: none.
    std::string root;
  };

  // Listens, and accepts nobody before Serve. UNAVAILABLE: the address cannot be
  // listened on; INVALID_ARGUMENT: a file or a directory that cannot be used.
  static absl::StatusOr<std::unique_ptr<WebPage>> Listen(
      const Options& options, std::shared_ptr<const Authorizer> authorizer,
      const Logger* logger);
  virtual ~WebPage() = default;

  struct Services {
    // To the services, within this process.
    std::shared_ptr<grpc::Channel> channel;
    // The address that ranks have, for people.
    std::string collector;
    // Outlives the page.
    const Auditor* auditor = nullptr;
    // A run of the archive as files; see page_dumps.h.
    FetchJobDump fetch;
    // Where jobs have their files. Made anew: nothing of it is kept.
    std::string job_directory;
    // The disk's reserve for ranks.
    uint64_t min_free_bytes = 0;
  };
  virtual absl::Status Serve(Services services) = 0;
  // Takes no more requests, ends those that are being answered.
  virtual void Stop() = 0;
  // "https://node0:8443/".
  virtual std::string address() const = 0;

  // What its channel is to be made with.
  static grpc::ChannelArguments Arguments();
  // Whether `listen` is such an address. INVALID_ARGUMENT.
  static absl::Status CheckAddress(const std::string& listen);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_WEB_PAGE_H_
