// SPDX-License-Identifier: Apache-2.0
// Server certificate with the names in it, and its key. Functions without
// state.
#ifndef RANKPROBE_WEB_HTTP_TLS_IDENTITY_H_
#define RANKPROBE_WEB_HTTP_TLS_IDENTITY_H_

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace rankprobe {

struct TlsIdentity {
  // A chain, the server's own certificate first, and its key, without a pass
  // phrase.
  std::string cert_pem;
  std::string key_pem;
};

// Accepts TLS 1.2 and later. Returns INVALID_ARGUMENT with the part that cannot
// be used.
absl::StatusOr<std::unique_ptr<boost::asio::ssl::context>> MakeTlsContext(
    const TlsIdentity& identity);

// Returns the names and addresses in the first certificate, in lower case, as
// they appear in a browser's address ("node0", "10.0.0.5", "[fd00::1]"). Names
// with a "*" are skipped. Returns INVALID_ARGUMENT if there is no certificate.
absl::StatusOr<std::vector<std::string>> NamesOfCertificate(
    const std::string& cert_pem);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_HTTP_TLS_IDENTITY_H_
