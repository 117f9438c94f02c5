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
  // A chain, the server's own certificate first; and its key, without a pass
  // phrase.
  std::string cert_pem;
  std::string key_pem;
};

// TLS 1.2 and later. INVALID_ARGUMENT: what of it cannot be used.
absl::StatusOr<std::unique_ptr<boost::asio::ssl::context>> MakeTlsContext(
    const TlsIdentity& identity);

// The names and addresses in the first certificate, in lower case, as a browser
// has them in an address ("node0", "10.0.0.5", "[fd00::1]"). A name with a "*" is
// none. INVALID_ARGUMENT: no certificate.
absl::StatusOr<std::vector<std::string>> NamesOfCertificate(
    const std::string& cert_pem);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_HTTP_TLS_IDENTITY_H_
