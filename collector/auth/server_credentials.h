// SPDX-License-Identifier: Apache-2.0
// Credentials of the server's port: TLS, client certificates, tokens. The check
// runs in gRPC before any service sees the call, so no method can forget it.
//
// Ownership: the credentials hold the Authorizer; the Logger outlives the
// server. Failure: INVALID_ARGUMENT naming the file that cannot be used.
#ifndef RANKPROBE_COLLECTOR_AUTH_SERVER_CREDENTIALS_H_
#define RANKPROBE_COLLECTOR_AUTH_SERVER_CREDENTIALS_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "collector/auth/authorizer.h"
#include "common/base/logger.h"

namespace rankprobe {

struct ServerSecurityFiles {
  // Empty means plain text.
  std::string tls_cert;
  std::string tls_key;
  // CA certificates for clients. If set, a client must present a certificate,
  // or may if there is a token file.
  std::string tls_client_ca;
  std::string token_file;
  // The server listens on a Unix socket instead of a port.
  bool unix_socket = false;
};

struct ServerSecurity {
  std::shared_ptr<grpc::ServerCredentials> credentials;
  std::shared_ptr<const Authorizer> authorizer;
};

absl::StatusOr<ServerSecurity> MakeServerSecurity(
    const ServerSecurityFiles& files, const Logger* logger);

// Returns the credentials of the caller, to name it in the audit log.
Credentials CredentialsOf(const grpc::CallbackServerContext& context);

// Sends gRPC's own log to `logger`, because gRPC reports failed handshakes only
// there. `logger` must live until this is called with null. One per process.
void ForwardGrpcLog(const Logger* logger);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_AUTH_SERVER_CREDENTIALS_H_
