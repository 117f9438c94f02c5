// SPDX-License-Identifier: Apache-2.0
// AWS Signature Version 4 of a request. libcurl has an implementation, whose
// rules for queries and headers differ between its versions; this one is the
// same on all of them.
// Pure functions.
#ifndef RANKPROBE_COLLECTOR_OBJECT_STORE_SIGV4_H_
#define RANKPROBE_COLLECTOR_OBJECT_STORE_SIGV4_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace rankprobe {

struct SigV4Credentials {
  std::string access_key_id;
  std::string secret_access_key;
  // Empty if they are not temporary.
  std::string session_token;
};

struct SigV4Scope {
  std::string region;
  std::string service = "s3";
};

struct SigV4Request {
  std::string method;
  // Not encoded.
  std::string path;
  // Not encoded, in any order.
  std::vector<std::pair<std::string, std::string>> query;
  // All signed headers, including "host" and "x-amz-date", in any order.
  std::vector<std::pair<std::string, std::string>> headers;
  // SHA-256 of the body, in hexadecimal, or "UNSIGNED-PAYLOAD".
  std::string payload_sha256;
};

// Encodes as in RFC 3986; `keep_slash` for a path.
std::string UriEncode(absl::string_view text, bool keep_slash);
// Returns "a=1&b=", encoded, in the order that is signed.
std::string CanonicalQuery(
    std::vector<std::pair<std::string, std::string>> query);

std::string HexSha256(absl::string_view data);
// Returns a text such as "20130524T000000Z".
std::string SigV4Date(absl::Time time);

std::string SigV4CanonicalRequest(const SigV4Request& request);
// Returns the value of the header Authorization.
std::string SigV4Authorization(const SigV4Request& request,
                               const SigV4Credentials& credentials,
                               const SigV4Scope& scope, absl::Time time);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_SIGV4_H_
