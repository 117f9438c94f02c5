// SPDX-License-Identifier: Apache-2.0
// HTTP server of /metrics in Prometheus' text format, made for each request.
// Ownership: the caller's; what `text` uses outlives the server.
// Threads: `text` is called in several at once and may wait. Failure: as
// HttpServer::Start.
#ifndef RANKPROBE_COLLECTOR_SERVER_METRICS_SERVER_H_
#define RANKPROBE_COLLECTOR_SERVER_METRICS_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "web/http/http_server.h"

namespace rankprobe {

// Listens on `host`, an IP address; port 0 takes a free one. A slow peer is
// disconnected after two seconds, and the oldest if there are too many.
absl::StatusOr<std::unique_ptr<HttpServer>> StartMetrics(
    const std::string& host, uint16_t port, std::function<std::string()> text);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_METRICS_SERVER_H_
