// SPDX-License-Identifier: Apache-2.0
#include "collector/auth/auditor.h"

#include "absl/strings/str_cat.h"
#include "collector/auth/server_credentials.h"
#include "common/rpc/grpc_channel.h"

namespace rankprobe {
namespace {

std::string PeerOf(const grpc::CallbackServerContext& context) {
  std::string peer = context.peer();
  // gRPC uses this name only for calls within the process.
  if (peer != "unknown") return peer;
  const auto found = context.client_metadata().find(kPagePeerKey);
  if (found == context.client_metadata().end()) return peer;
  return absl::StrCat(
      "page:", absl::string_view(found->second.data(), found->second.size()));
}

}  // namespace

Auditor::Entry Auditor::Describe(const grpc::CallbackServerContext& context,
                                 absl::string_view action,
                                 const std::string& run,
                                 std::string detail) const {
  AuditRecord record;
  if (authorizer_ != nullptr) {
    const absl::StatusOr<Principal> principal =
        authorizer_->Identify(CredentialsOf(context));
    if (principal.ok()) {
      record.actor = principal->name;
      record.role = std::string(RoleName(principal->role));
    }
  }
  record.peer = PeerOf(context);
  record.action = std::string(action);
  record.run = run;
  record.detail = std::move(detail);
  record.outcome = kBegun;
  return Entry(std::move(record), this);
}

Auditor::Entry Auditor::Describe(AuditRecord record) const {
  record.outcome = kBegun;
  return Entry(std::move(record), this);
}

void Auditor::Entry::Begin() const { auditor_->Write(record_); }

void Auditor::Write(const AuditRecord& record) const {
  Write(record, AuditLog::Durability::kWritten);
}

void Auditor::Write(const AuditRecord& record,
                    AuditLog::Durability durability) const {
  if (log_ == nullptr) return;
  if (const absl::Status status = log_->Write(record, durability); !status.ok())
    logger_->Error("audit_failed", {{"status", status.ToString()}});
}

std::string Auditor::ActorOf(const grpc::CallbackServerContext& context) const {
  if (authorizer_ == nullptr) return "";
  const absl::StatusOr<Principal> principal =
      authorizer_->Identify(CredentialsOf(context));
  return principal.ok() ? principal->name : "";
}

absl::Status Auditor::CheckOperator(const grpc::CallbackServerContext& context,
                                    absl::string_view what) const {
  if (authorizer_ == nullptr) return absl::OkStatus();
  return authorizer_->CheckOperator(CredentialsOf(context), what);
}

void Auditor::Entry::End(absl::string_view outcome, uint64_t epoch) const {
  AuditRecord record = record_;
  record.outcome = std::string(outcome);
  record.epoch = epoch;
  auditor_->logger_->Info("control", {{"action", record.action},
                                      {"run", record.run},
                                      {"actor", record.actor},
                                      {"peer", record.peer},
                                      {"detail", record.detail},
                                      {"outcome", record.outcome}});
  auditor_->Write(record, AuditLog::Durability::kSynced);
}

void Auditor::Entry::End(const absl::Status& status,
                         absl::string_view done) const {
  End(status.ok() ? absl::StrCat("OK: ", done) : status.ToString());
}

}  // namespace rankprobe
