// SPDX-License-Identifier: Apache-2.0
#include "collector/auth/authorizer.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "rankprobe/v1/access.pb.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/archive.pb.h"
#include "rankprobe/v1/control.pb.h"
#include "rankprobe/v1/leaf.pb.h"

namespace rankprobe {
namespace {

constexpr absl::string_view kBearer = "Bearer ";
constexpr absl::string_view kUriScheme = "rankprobe:";

std::optional<Role> RoleOf(v1::AccessRole role) {
  switch (role) {
    case v1::ACCESS_ROLE_AGENT:
      return Role::kAgent;
    case v1::ACCESS_ROLE_VIEWER:
      return Role::kViewer;
    case v1::ACCESS_ROLE_OPERATOR:
      return Role::kOperator;
    default:
      return std::nullopt;
  }
}

struct MethodAccess {
  // Absent if the method has no access option.
  std::optional<Role> role;
  bool audited = false;
};

// By path. Built once: looking up callers' names in the pool would let them
// fill its cache of unknown names.
const absl::flat_hash_map<std::string, MethodAccess>& AccessOfMethods() {
  static const auto* const table = [] {
    auto* const methods = new absl::flat_hash_map<std::string, MethodAccess>();
    for (const google::protobuf::Descriptor* const message :
         {v1::Hello::descriptor(), v1::SwitchResult::descriptor(),
          v1::DeleteReport::descriptor(), v1::LeafReport::descriptor()}) {
      const google::protobuf::FileDescriptor* const file = message->file();
      for (int s = 0; s < file->service_count(); ++s) {
        const google::protobuf::ServiceDescriptor* const service =
            file->service(s);
        for (int m = 0; m < service->method_count(); ++m) {
          const google::protobuf::MethodDescriptor* const method =
              service->method(m);
          const v1::Access& access = method->options().GetExtension(v1::access);
          MethodAccess& entry = (*methods)[absl::StrCat(
              "/", service->full_name(), "/", method->name())];
          entry.role = method->options().GetExtension(v1::leaf_only)
                           ? Role::kLeaf
                           : RoleOf(access.role());
          entry.audited = access.audited();
        }
      }
    }
    return methods;
  }();
  return *table;
}

bool Grants(Role has, Role needs) {
  return has == needs || (has == Role::kOperator && needs == Role::kViewer);
}

}  // namespace

std::optional<Role> NeededRole(absl::string_view path) {
  // Orchestrators check health without a secret; the answer is only up or down.
  if (absl::StartsWith(path, "/grpc.health.v1.Health/")) return std::nullopt;
  if (absl::StartsWith(path, "/grpc.reflection.")) return Role::kViewer;
  const auto it = AccessOfMethods().find(path);
  if (it == AccessOfMethods().end()) return Role::kOperator;
  return it->second.role.value_or(Role::kOperator);
}

bool IsAudited(absl::string_view path) {
  const auto it = AccessOfMethods().find(path);
  return it != AccessOfMethods().end() && it->second.audited;
}

absl::Status Authorizer::CheckOperator(const Credentials& credentials,
                                       absl::string_view what) const {
  RP_ASSIGN_OR_RETURN(const Principal principal, Identify(credentials));
  if (principal.role == Role::kOperator) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(principal.name, " has the role ", RoleName(principal.role),
                   "; ", what, " needs operator"));
}

size_t Authorizer::CountAgents() const {
  const size_t names = (tokens_.has_value() ? tokens_->CountAgents() : 0) +
                       (client_certificates_ ? 1 : 0);
  return std::max<size_t>(names, 1);
}

absl::StatusOr<Principal> Authorizer::Identify(
    const Credentials& credentials) const {
  if (open())
    return Principal::Of(Role::kOperator, std::string(Principal::kAnybody));
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
        return Principal::Of(*role, credentials.certificate_name);
    }
    if (!tokens_.has_value()) {
      return absl::UnauthenticatedError(
          absl::StrCat("the certificate of \"", credentials.certificate_name,
                       "\" names no role (URI rankprobe:agent, "
                       "rankprobe:leaf, rankprobe:operator or "
                       "rankprobe:viewer)"));
    }
  }
  return absl::UnauthenticatedError(
      "a token is needed (RANKPROBE_TOKEN_FILE, --token-file)");
}

absl::StatusOr<Principal> Authorizer::Check(const Credentials& credentials,
                                            absl::string_view path) const {
  const std::optional<Role> needs = NeededRole(path);
  if (!needs.has_value())
    return Principal::Of(Role::kViewer, std::string(Principal::kAnybody));
  RP_ASSIGN_OR_RETURN(Principal principal, Identify(credentials));
  if (open() || Grants(principal.role, *needs)) return principal;
  return absl::PermissionDeniedError(absl::StrCat(
      principal.name, " has the role ", RoleName(principal.role), "; ",
      path.substr(path.rfind('/') + 1), " needs ", RoleName(*needs)));
}

}  // namespace rankprobe
