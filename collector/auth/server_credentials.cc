// SPDX-License-Identifier: Apache-2.0
#include "collector/auth/server_credentials.h"

#include <grpc/grpc_security_constants.h>
#include <grpc/support/log.h>
#include <grpcpp/security/auth_metadata_processor.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel_security.h"

namespace rankprobe {
namespace {

std::string Text(const grpc::string_ref& text) {
  return std::string(text.data(), text.size());
}

std::string First(const grpc::AuthContext& context, const char* property) {
  const std::vector<grpc::string_ref> values =
      context.FindPropertyValues(property);
  return values.empty() ? std::string() : Text(values.front());
}

template <typename Metadata>
Credentials MakeCredentials(const Metadata& metadata,
                            const grpc::AuthContext* context) {
  Credentials credentials;
  const auto it = metadata.find("authorization");
  if (it != metadata.end()) credentials.authorization = Text(it->second);
  if (context != nullptr) {
    credentials.certificate_uri = First(*context, GRPC_PEER_URI_PROPERTY_NAME);
    credentials.certificate_name = First(*context, GRPC_X509_CN_PROPERTY_NAME);
  }
  return credentials;
}

class Processor final : public grpc::AuthMetadataProcessor {
 public:
  Processor(std::shared_ptr<const Authorizer> authorizer, const Logger* logger)
      : authorizer_(std::move(authorizer)), log_(logger) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata,
                       grpc::AuthContext* context, OutputMetadata* /*consumed*/,
                       OutputMetadata* /*response*/) override {
    const auto path = metadata.find(":path");
    const std::string method =
        path == metadata.end() ? std::string() : Text(path->second);
    const Credentials credentials = MakeCredentials(metadata, context);
    const absl::StatusOr<Principal> principal =
        authorizer_->Check(credentials, method);
    if (principal.ok()) return grpc::Status::OK;
    // The path is the caller's and may be of any length.
    log_.Log(Logger::Severity::kWarning, "call_refused",
             {{"method", method.substr(0, 256)},
              {"certificate", credentials.certificate_name},
              {"status", principal.status().ToString()}});
    return grpc::Status(
        static_cast<grpc::StatusCode>(principal.status().code()),
        std::string(principal.status().message()));
  }

 private:
  const std::shared_ptr<const Authorizer> authorizer_;
  LogLimiter log_;
};

// Global, because gRPC's log function takes no user argument.
absl::Mutex g_grpc_log_mutex(absl::kConstInit);
std::unique_ptr<LogLimiter>& GrpcLog()
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(g_grpc_log_mutex) {
  static auto* const log = new std::unique_ptr<LogLimiter>();
  return *log;
}

void OnGrpcLog(gpr_log_func_args* args) {
  const absl::string_view message(args->message);
  const bool handshake = absl::StrContains(message, "Handshaking failed");
  if (!handshake && (args->severity != GPR_LOG_SEVERITY_ERROR ||
                     absl::StrContains(message, "Handshake failed")))
    return;
  absl::MutexLock lock(&g_grpc_log_mutex);
  if (GrpcLog() == nullptr) return;
  GrpcLog()->Log(Logger::Severity::kWarning,
                 handshake ? "handshake_failed" : "grpc",
                 {{handshake ? "reason" : "message", std::string(message)}});
}

}  // namespace

absl::StatusOr<ServerSecurity> MakeServerSecurity(
    const ServerSecurityFiles& files, const Logger* logger) {
  std::optional<TokenTable> tokens;
  if (!files.token_file.empty()) {
    RP_ASSIGN_OR_RETURN(tokens, TokenTable::Load(files.token_file));
  }
  ServerSecurity security;
  security.authorizer = std::make_shared<Authorizer>(
      std::move(tokens), !files.tls_client_ca.empty());
  if (files.tls_cert.empty()) {
    // Local credentials are plain text, and for this machine only; insecure
    // credentials cannot carry a check.
    security.credentials = security.authorizer->open()
                               ? grpc::InsecureServerCredentials()
                               : grpc::experimental::LocalServerCredentials(
                                     files.unix_socket ? UDS : LOCAL_TCP);
  } else {
    // With mutual TLS alone a certificate is required. With tokens a client may
    // connect without one.
    grpc::SslServerCredentialsOptions options(
        files.tls_client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
        : files.token_file.empty()
            ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
            : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
    ChannelSecurityFiles own;
    own.tls_ca =
        files.tls_client_ca.empty() ? files.tls_cert : files.tls_client_ca;
    own.tls_cert = files.tls_cert;
    own.tls_key = files.tls_key;
    RP_ASSIGN_OR_RETURN(const ChannelSecurity pem, ReadChannelSecurity(own));
    if (!files.tls_client_ca.empty()) options.pem_root_certs = pem.ca_pem;
    options.pem_key_cert_pairs.push_back({pem.key_pem, pem.cert_pem});
    security.credentials = grpc::SslServerCredentials(options);
  }
  if (!security.authorizer->open()) {
    security.credentials->SetAuthMetadataProcessor(
        std::make_shared<Processor>(security.authorizer, logger));
  }
  return security;
}

Credentials CredentialsOf(const grpc::CallbackServerContext& context) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  return MakeCredentials(context.client_metadata(), auth.get());
}

void ForwardGrpcLog(const Logger* logger) {
  {
    absl::MutexLock lock(&g_grpc_log_mutex);
    GrpcLog() =
        logger == nullptr ? nullptr : std::make_unique<LogLimiter>(logger);
  }
  if (logger == nullptr) return;
  gpr_set_log_function(OnGrpcLog);
  // gRPC logs failed handshakes at this level.
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_DEBUG);
}

}  // namespace rankprobe
