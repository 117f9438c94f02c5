// SPDX-License-Identifier: Apache-2.0
// Credentials that verify the collector and authenticate a client: PEM texts
// and a bearer token, read from files once. No gRPC here;
// common/rpc/grpc_channel.h makes channels of it. A value; copies are
// independent.
#ifndef RANKPROBE_COMMON_RPC_CHANNEL_SECURITY_H_
#define RANKPROBE_COMMON_RPC_CHANNEL_SECURITY_H_

#include <string>

#include "absl/status/statusor.h"

namespace rankprobe {

// Files to read from; empty = not used.
//   RANKPROBE_TLS_CA           certificates that may vouch for the collector;
//                              set: the connection is TLS
//   RANKPROBE_TLS_CERT, _KEY   this client's own certificate (mutual TLS)
//   RANKPROBE_TLS_SERVER_NAME  the name in the collector's certificate, when it
//                              is not the one that is connected to
//   RANKPROBE_TOKEN_FILE       file with one bearer token
struct ChannelSecurityFiles {
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
  std::string tls_server_name;
  std::string token_file;
};

struct ChannelSecurity {
  // Empty: no TLS.
  std::string ca_pem;
  std::string cert_pem;
  std::string key_pem;
  std::string server_name;
  std::string token;
};

// Fills empty members from the environment; `get` returns null for a variable
// that is not set.
template <typename Getter>
void FillFromEnvironment(const Getter& get, ChannelSecurityFiles* files) {
  const auto fill = [&get](const char* name, std::string* member) {
    const char* const value = get(name);
    if (member->empty() && value != nullptr) *member = value;
  };
  fill("RANKPROBE_TLS_CA", &files->tls_ca);
  fill("RANKPROBE_TLS_CERT", &files->tls_cert);
  fill("RANKPROBE_TLS_KEY", &files->tls_key);
  fill("RANKPROBE_TLS_SERVER_NAME", &files->tls_server_name);
  fill("RANKPROBE_TOKEN_FILE", &files->token_file);
}

// INVALID_ARGUMENT names a file that cannot be read or has unexpected contents.
absl::StatusOr<ChannelSecurity> ReadChannelSecurity(
    const ChannelSecurityFiles& files);

// Reads a complete file of at most 1 MiB; INVALID_ARGUMENT names the file.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RPC_CHANNEL_SECURITY_H_
