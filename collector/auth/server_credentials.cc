#include "collector/auth/server_credentials.h"

#include <grpc/grpc_security_constants.h>
#include <grpc/support/log.h>
#include <grpcpp/security/auth_metadata_processor.h>

#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/channel_security.h"
#include "common/status_macros.h"

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
      : authorizer_(std::move(authorizer)), logger_(logger) {}

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
    logger_->Log(Logger::Severity::kWarning, "call_refused",
                 {{"method", method},
                  {"certificate", credentials.certificate_name},
                  {"status", principal.status().ToString()}});
    return grpc::Status(
        static_cast<grpc::StatusCode>(principal.status().code()),
        std::string(principal.status().message()));
  }

 private:
  const std::shared_ptr<const Authorizer> authorizer_;
  const Logger* const logger_;
};

// gRPC's log function takes no argument of ours.
std::atomic<const Logger*> g_grpc_logger{nullptr};

void OnGrpcLog(gpr_log_func_args* args) {
  const Logger* const logger = g_grpc_logger.load();
  if (logger == nullptr) return;
  const absl::string_view message(args->message);
  if (absl::StrContains(message, "Handshaking failed")) {
    logger->Log(Logger::Severity::kWarning, "handshake_failed",
                {{"reason", std::string(message)}});
  } else if (args->severity == GPR_LOG_SEVERITY_ERROR &&
             !absl::StrContains(message, "Handshake failed")) {
    logger->Log(Logger::Severity::kWarning, "grpc",
                {{"message", std::string(message)}});
  }
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
    // Local credentials are plain text on the wire, and for loopback only; the
    // insecure ones cannot carry a check.
    security.credentials =
        security.authorizer->open()
            ? grpc::InsecureServerCredentials()
            : grpc::experimental::LocalServerCredentials(LOCAL_TCP);
  } else {
    // Mutual TLS alone: no certificate, no connection. With tokens a client may
    // do without one.
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
  g_grpc_logger.store(logger);
  if (logger == nullptr) return;
  gpr_set_log_function(OnGrpcLog);
  // Failed handshakes are told at this level.
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_DEBUG);
}

}  // namespace rankprobe
