#include "collector/auth/authorizer.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace rankprobe {
namespace {

constexpr absl::string_view kBearer = "Bearer ";
constexpr absl::string_view kUriScheme = "rankprobe:";

// Reading changes nothing.
constexpr std::array<absl::string_view, 13> kViewerMethods = {
    "ControlService/GetConfig",   "ControlService/ListAgents",
    "ControlService/Explain",     "ControlService/ListEvents",
    "ControlService/GetTriggers", "ArchiveService/ListRuns",
    "ArchiveService/ListSteps",   "ArchiveService/ListCalls",
    "ArchiveService/GetTensor",   "ArchiveService/Export",
    "ArchiveService/Watch",       "ArchiveService/GetLedger",
    "ArchiveService/Verify",
};

bool Grants(Role has, Role needs) {
  return has == needs || (has == Role::kOperator && needs == Role::kViewer);
}

}  // namespace

std::optional<Role> NeededRole(absl::string_view path) {
  // Orchestrators ask for health without a secret; it tells up or down.
  if (absl::StartsWith(path, "/grpc.health.v1.Health/")) return std::nullopt;
  if (absl::StartsWith(path, "/grpc.reflection.")) return Role::kViewer;
  absl::string_view method = path;
  if (!absl::ConsumePrefix(&method, "/rankprobe.v1.")) return Role::kOperator;
  if (absl::StartsWith(method, "AgentService/")) return Role::kAgent;
  if (std::find(kViewerMethods.begin(), kViewerMethods.end(), method) !=
      kViewerMethods.end())
    return Role::kViewer;
  return Role::kOperator;
}

absl::StatusOr<Principal> Authorizer::Identify(
    const Credentials& credentials) const {
  if (open()) return Principal{Role::kOperator, "anybody"};
  if (tokens_.has_value() && credentials.authorization.has_value()) {
    absl::string_view token = *credentials.authorization;
    if (!absl::ConsumePrefix(&token, kBearer))
      return absl::UnauthenticatedError("authorization is not a bearer token");
    std::optional<Principal> principal = tokens_->Find(token);
    if (!principal.has_value())
      return absl::UnauthenticatedError("the token is not known here");
    return *std::move(principal);
  }
  if (client_certificates_) {
    absl::string_view uri = credentials.certificate_uri;
    if (absl::ConsumePrefix(&uri, kUriScheme)) {
      if (const std::optional<Role> role = ParseRole(uri); role.has_value())
        return Principal{*role, credentials.certificate_name};
    }
    if (!tokens_.has_value()) {
      return absl::UnauthenticatedError(
          absl::StrCat("the certificate of \"", credentials.certificate_name,
                       "\" names no role (URI rankprobe:agent, "
                       "rankprobe:operator or rankprobe:viewer)"));
    }
  }
  return absl::UnauthenticatedError(
      "a token is needed (RANKPROBE_TOKEN_FILE, --token-file)");
}

absl::StatusOr<Principal> Authorizer::Check(const Credentials& credentials,
                                            absl::string_view path) const {
  const std::optional<Role> needs = NeededRole(path);
  if (!needs.has_value()) return Principal{Role::kViewer, "anybody"};
  RP_ASSIGN_OR_RETURN(Principal principal, Identify(credentials));
  if (open() || Grants(principal.role, *needs)) return principal;
  return absl::PermissionDeniedError(absl::StrCat(
      principal.name, " is ", RoleName(principal.role), "; ",
      path.substr(path.rfind('/') + 1), " needs ", RoleName(*needs)));
}

}  // namespace rankprobe
