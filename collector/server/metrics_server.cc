// SPDX-License-Identifier: Apache-2.0
#include "collector/server/metrics_server.h"

#include <utility>

namespace rankprobe {

absl::StatusOr<std::unique_ptr<HttpServer>> StartMetrics(
    const std::string& host, uint16_t port, std::function<std::string()> text) {
  constexpr absl::Duration kPatience = absl::Seconds(2);
  HttpServerOptions options;
  options.address = host;
  options.port = port;
  options.unauthenticated = true;
  options.strangers_make_way = true;
  options.max_header_bytes = 8 << 10;
  options.max_body_bytes = 0;
  options.idle_timeout = kPatience;
  options.request_timeout = kPatience;
  options.write_timeout = kPatience;
  return HttpServer::Start(
      std::move(options),
      [text = std::move(text)](const HttpRequest& request, HttpReply* reply) {
        if (request.method != "GET" || request.path != "/metrics") {
          reply->Send(404, "text/plain", "only GET /metrics is here\n");
          return;
        }
        reply->Send(200, "text/plain; version=0.0.4; charset=utf-8", text());
      });
}

}  // namespace rankprobe
