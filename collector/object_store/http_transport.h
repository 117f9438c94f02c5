// SPDX-License-Identifier: Apache-2.0
// One HTTP request and its answer: what the S3 client stands on.
// Threads: Do may be called by many at once. Failure of Do: the answer did not
// come whole. DEADLINE_EXCEEDED; FAILED_PRECONDITION (a certificate that is not
// good or cannot be read, an address that is none): trying again is of no use;
// RESOURCE_EXHAUSTED (more bytes than were asked for, no memory); UNAVAILABLE
// (all else: no such host, no connection, or it broke).
#ifndef RANKPROBE_COLLECTOR_OBJECT_STORE_HTTP_TRANSPORT_H_
#define RANKPROBE_COLLECTOR_OBJECT_STORE_HTTP_TRANSPORT_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace rankprobe {

struct HttpCall {
  std::string method;
  std::string url;
  std::vector<std::pair<std::string, std::string>> headers;
  // Of PUT and POST; outlives the call.
  absl::string_view body;
  // Of the answer.
  uint64_t max_body_bytes = 0;
  absl::Duration timeout;
};

struct HttpResponse {
  int status = 0;
  // Names in small letters.
  std::map<std::string, std::string> headers;
  std::string body;
};

class HttpTransport {
 public:
  virtual ~HttpTransport() = default;
  virtual absl::StatusOr<HttpResponse> Do(const HttpCall& request) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_HTTP_TRANSPORT_H_
