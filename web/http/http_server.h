// SPDX-License-Identifier: Apache-2.0
// A small HTTP/1.1 server for a page: keep-alive, bodies of bounded size,
// answers complete or in pieces with back pressure; beyond this machine only
// with TLS. The handler makes the answers; the server decides which requests
// are allowed (request_guard.h).
//
// Two threads move bytes; each request has a thread of its own while its
// handler runs, so a handler may block. Thread-safe. Failures: Start returns
// the reason why it cannot listen; a failure of a connection ends only that
// connection.
#ifndef RANKPROBE_WEB_HTTP_HTTP_SERVER_H_
#define RANKPROBE_WEB_HTTP_HTTP_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "web/http/http_message.h"
#include "web/http/tls_identity.h"

namespace rankprobe {

struct HttpServerOptions {
  // An IP address, without brackets: any with `tls`, otherwise a loopback
  // address, 127.a.b.c or ::1.
  std::string address = "127.0.0.1";
  // 0 selects any free port.
  uint16_t port = 0;
  // Required of every request below /api/. Must not be empty unless
  // `check_token` is set.
  std::string token;
  // See GuardRules. Runs in the threads that move bytes, so it must not block.
  std::function<absl::Status(absl::string_view token)> check_token;
  // Serves without a token, also on other addresses than loopback without TLS,
  // and for any Host of a request. Only for public data that requests cannot
  // change, such as metrics.
  bool unauthenticated = false;
  std::optional<TlsIdentity> tls;
  // Additional names that browsers may use for this server, without a port;
  // those in the certificate are already known.
  std::vector<std::string> names;

  // Further connections are closed immediately with a 503.
  size_t max_connections = 64;
  // At the limit, closes the oldest connection without an authorized request,
  // or else an idle one, instead of refusing the new one.
  bool strangers_make_way = false;
  uint32_t max_header_bytes = 16 << 10;
  uint64_t max_body_bytes = 1 << 20;
  // Limit for a connection without a request.
  absl::Duration idle_timeout = absl::Seconds(60);
  // Limit for a request, from its first byte to its last.
  absl::Duration request_timeout = absl::Seconds(15);
  // Limit for 256 KiB of an answer that the client does not read.
  absl::Duration write_timeout = absl::Seconds(30);
  // Requests in progress may continue for this long after Stop.
  absl::Duration stop_grace = absl::Seconds(1);
};

class HttpServer {
 public:
  // Listens when it returns, but accepts no connection before Serve. Returns
  // INVALID_ARGUMENT for an address beyond this machine without TLS, or a
  // certificate or key that cannot be used; FAILED_PRECONDITION if the port is
  // in use or not permitted.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(
      HttpServerOptions options);
  // Calls Listen and Serve.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      HttpServerOptions options, HttpHandler handler);
  // Calls Stop.
  virtual ~HttpServer() = default;

  virtual uint16_t port() const = 0;
  // Returns the address for a browser: "http://127.0.0.1:8080".
  virtual std::string origin() const = 0;
  // Starts to accept connections; called once.
  virtual void Serve(HttpHandler handler) = 0;
  // Stops accepting, closes idle connections, and lets answers end. After the
  // grace period, closes the remaining connections and runs their handlers'
  // OnGone callbacks. Returns when no handler runs. May be called again, by one
  // thread at a time.
  virtual void Stop() = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_HTTP_HTTP_SERVER_H_
