// SPDX-License-Identifier: Apache-2.0
// One HTTP request and its answer: the basis of the S3 client.
// Threads: Do may be called by many at once. Failure of Do: no complete answer.
// DEADLINE_EXCEEDED; FAILED_PRECONDITION (a certificate that is not valid or
// cannot be read, an invalid address): a retry does not help;
// RESOURCE_EXHAUSTED (more bytes than requested, no memory); UNAVAILABLE
// (everything else: unknown host, no connection, or it broke).
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
  // Body of PUT and POST; outlives the call.
  absl::string_view body;
  // Limit for the body of the answer.
  uint64_t max_body_bytes = 0;
  absl::Duration timeout;
};

struct HttpResponse {
  int status = 0;
  // Names are in lower case.
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
