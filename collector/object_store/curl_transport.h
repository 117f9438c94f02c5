// SPDX-License-Identifier: Apache-2.0
// HTTP and HTTPS by libcurl, which is loaded when it is needed: a collector
// that uses no object store runs without it, and the wheel contains neither it
// nor its fifteen dependencies (docs/packaging.md).
//
// Certificates are verified, redirections are not followed, proxies are those
// of the environment (https_proxy, no_proxy). Connections are kept open.
// Ownership: one per store. Thread-safe: as many connections as concurrent
// calls.
#ifndef RANKPROBE_COLLECTOR_OBJECT_STORE_CURL_TRANSPORT_H_
#define RANKPROBE_COLLECTOR_OBJECT_STORE_CURL_TRANSPORT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "collector/object_store/http_transport.h"

namespace rankprobe {

struct CurlOptions {
  // PEM certificates of the store's CA; empty: the system's.
  std::string ca_file;
};

// FAILED_PRECONDITION, with what to install, if there is no libcurl.
absl::StatusOr<std::unique_ptr<HttpTransport>> NewCurlTransport(
    const CurlOptions& options);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_CURL_TRANSPORT_H_
