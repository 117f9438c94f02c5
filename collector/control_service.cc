#include "collector/control_service.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "collector/auth/server_credentials.h"
#include "collector/ingest/server_stream.h"

namespace rankprobe {
namespace {

// A unary call whose answer comes later, and whose caller may leave before.
class SwitchReactor : public grpc::ServerUnaryReactor {
 public:
  // Shared with the pending switch: whoever comes second finds it closed.
  struct Slot {
    absl::Mutex mutex;
    SwitchReactor* reactor ABSL_GUARDED_BY(mutex) = nullptr;
  };

  explicit SwitchReactor(v1::SwitchResult* response)
      : response_(response), slot_(std::make_shared<Slot>()) {
    absl::MutexLock lock(&slot_->mutex);
    slot_->reactor = this;
  }

  SwitchOperation::Done Done() {
    return [slot = slot_](absl::StatusOr<v1::SwitchResult> result) {
      absl::MutexLock lock(&slot->mutex);
      SwitchReactor* const reactor = std::exchange(slot->reactor, nullptr);
      if (reactor == nullptr) return;
      if (result.ok()) {
        *reactor->response_ = *std::move(result);
        reactor->Finish(grpc::Status::OK);
      } else {
        reactor->Finish(ToGrpc(result.status()));
      }
    };
  }

 private:
  void OnCancel() override {
    absl::MutexLock lock(&slot_->mutex);
    if (std::exchange(slot_->reactor, nullptr) != nullptr)
      Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

  v1::SwitchResult* const response_;
  const std::shared_ptr<Slot> slot_;
};

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                 const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

std::string DescribeOptions(const v1::SwitchOptions& options) {
  std::string text =
      options.ranks().empty()
          ? "ranks all"
          : absl::StrCat("ranks ", absl::StrJoin(options.ranks(), ","));
  if (options.has_at_step())
    absl::StrAppend(&text, ", at step ", options.at_step());
  if (options.for_steps() > 0)
    absl::StrAppend(&text, ", for ", options.for_steps(), " steps");
  return text;
}

}  // namespace

class ControlService::Audit {
 public:
  Audit(AuditRecord record, AuditLog* log, const Logger* logger)
      : record_(std::move(record)), log_(log), logger_(logger) {}

  void End(const absl::StatusOr<v1::SwitchResult>& result) {
    record_.outcome = result.ok() ? absl::StrCat("OK: ", result->summary())
                                  : result.status().ToString();
    record_.epoch = result.ok() ? result->epoch() : 0;
    logger_->Info("control", {{"action", record_.action},
                              {"run", record_.run},
                              {"actor", record_.actor},
                              {"peer", record_.peer},
                              {"detail", record_.detail},
                              {"outcome", record_.outcome}});
    if (log_ == nullptr) return;
    if (const absl::Status status = log_->Write(record_); !status.ok())
      logger_->Error("audit_failed", {{"status", status.ToString()}});
  }

 private:
  AuditRecord record_;
  AuditLog* const log_;
  const Logger* const logger_;
};

ControlService::Audit ControlService::BeginAudit(
    const grpc::CallbackServerContext& context, const char* action,
    const std::string& run, const std::string& detail) const {
  AuditRecord record;
  if (authorizer_ != nullptr) {
    const auto principal = authorizer_->Identify(CredentialsOf(context));
    if (principal.ok()) {
      record.actor = principal->name;
      record.role = std::string(RoleName(principal->role));
    }
  }
  record.peer = context.peer();
  record.action = action;
  record.run = run;
  record.detail = detail;
  return Audit(std::move(record), audit_, logger_);
}

grpc::ServerUnaryReactor* ControlService::SetConfig(
    grpc::CallbackServerContext* context, const v1::SetConfigRequest* request,
    v1::SwitchResult* response) {
  auto* const reactor = new SwitchReactor(response);
  control_->SetConfig(
      *request,
      [audit = BeginAudit(*context, "SetConfig", request->run(),
                          absl::StrCat(DescribeOptions(request->options()),
                                       ", config ", request->config_json())),
       done =
           reactor->Done()](absl::StatusOr<v1::SwitchResult> result) mutable {
        audit.End(result);
        done(std::move(result));
      });
  return reactor;
}

grpc::ServerUnaryReactor* ControlService::SetDumpEnable(
    grpc::CallbackServerContext* context,
    const v1::SetDumpEnableRequest* request, v1::SwitchResult* response) {
  auto* const reactor = new SwitchReactor(response);
  control_->SetDumpEnable(
      *request,
      [audit = BeginAudit(
           *context, request->enable() ? "Enable" : "Disable", request->run(),
           absl::StrCat(DescribeOptions(request->options()),
                        request->config_json().empty() ? "" : ", config ",
                        request->config_json())),
       done =
           reactor->Done()](absl::StatusOr<v1::SwitchResult> result) mutable {
        audit.End(result);
        done(std::move(result));
      });
  return reactor;
}

grpc::ServerUnaryReactor* ControlService::GetConfig(
    grpc::CallbackServerContext* context, const v1::GetConfigRequest* request,
    v1::GetConfigResponse* response) {
  absl::StatusOr<v1::GetConfigResponse> config =
      control_->GetConfig(request->run());
  if (!config.ok()) return Answer(context, config.status());
  *response = *std::move(config);
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ControlService::ListAgents(
    grpc::CallbackServerContext* context, const v1::ListAgentsRequest* request,
    v1::ListAgentsResponse* response) {
  *response = control_->ListAgents(request->run());
  return Answer(context, absl::OkStatus());
}

}  // namespace rankprobe
