// SPDX-License-Identifier: Apache-2.0
#include "collector/rpc/control_service.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "collector/rpc/server_stream.h"
#include "collector/rpc/stream_writer.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"

namespace rankprobe {
namespace {

// A unary call whose answer comes later, and whose caller may leave before.
template <typename Response>
class LateReactor : public grpc::ServerUnaryReactor {
 public:
  // Shared with the pending answer: the second of the two to finish finds it
  // closed.
  struct Slot {
    absl::Mutex mutex;
    LateReactor* reactor ABSL_GUARDED_BY(mutex) = nullptr;
  };

  explicit LateReactor(Response* response)
      : response_(response), slot_(std::make_shared<Slot>()) {
    absl::MutexLock lock(&slot_->mutex);
    slot_->reactor = this;
  }

  std::function<void(absl::StatusOr<Response>)> Done() {
    return [slot = slot_](absl::StatusOr<Response> result) {
      absl::MutexLock lock(&slot->mutex);
      LateReactor* const reactor = std::exchange(slot->reactor, nullptr);
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

  Response* const response_;
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
    absl::StrAppend(&text, ", for ", Counted(options.for_steps(), "step"));
  return text;
}

void EndAudit(const absl::StatusOr<v1::SwitchResult>& result,
              const Auditor::Entry& audit) {
  if (result.ok()) {
    audit.End(absl::StrCat("OK: ", result->summary()), result->epoch());
  } else {
    audit.End(result.status().ToString());
  }
}

// Memory of a waiting request: itself, and its text in the audit log's line.
template <typename Request>
uint64_t HeldBytes(const Request& request) {
  return 2 * static_cast<uint64_t>(request.ByteSizeLong()) + 1024;
}

}  // namespace

PlanSwitches::Done ControlService::WhenDone(
    const Auditor::Entry& entry,
    std::function<void(absl::StatusOr<v1::SwitchResult>)> done) {
  // Called under the control plane's lock.
  return [audited = audited_, entry,
          done = std::move(done)](const absl::StatusOr<v1::SwitchResult>& r) {
    audited->Add([entry, done, r] {
      EndAudit(r, entry);
      done(r);
    });
  };
}

void ControlService::ActAudited(
    const Auditor::Entry& entry, uint64_t bytes, std::function<void()> act,
    const std::function<void(const absl::Status&)>& refuse) {
  const bool added = audited_->TryAdd(
      [entry, act = std::move(act)] {
        entry.Begin();
        act();
      },
      bytes);
  if (added) return;
  refuse(
      absl::ResourceExhaustedError("too many actions wait to be audited: the "
                                   "disk of the data directory does not "
                                   "answer; nothing was done"));
}

grpc::ServerUnaryReactor* ControlService::SetConfig(
    grpc::CallbackServerContext* context, const v1::SetConfigRequest* request,
    v1::SwitchResult* response) {
  if (leaves_.elsewhere != nullptr)
    return Answer(context, leaves_.elsewhere(request->run()));
  auto* const reactor = new LateReactor<v1::SwitchResult>(response);
  const Auditor::Entry entry = auditor_->Describe(
      *context, "SetConfig", request->run(),
      absl::StrCat(DescribeOptions(request->options()), ", config ",
                   request->config_json(),
                   !request->has_api_list()      ? ""
                   : request->api_list().empty() ? ", the agents' own API list"
                                                 : ", an API list",
                   request->api_list().empty() ? "" : " ",
                   request->api_list()));
  const auto done = reactor->Done();
  // The request is copied, because the call may end before the task runs.
  ActAudited(
      entry, HeldBytes(*request),
      [this, request = *request, entry, done,
       actor = auditor_->ActorOf(*context)] {
        control_->plans().SetConfig(request, WhenDone(entry, done), actor);
      },
      done);
  return reactor;
}

grpc::ServerUnaryReactor* ControlService::SetDumpEnable(
    grpc::CallbackServerContext* context,
    const v1::SetDumpEnableRequest* request, v1::SwitchResult* response) {
  if (leaves_.elsewhere != nullptr)
    return Answer(context, leaves_.elsewhere(request->run()));
  auto* const reactor = new LateReactor<v1::SwitchResult>(response);
  const Auditor::Entry entry = auditor_->Describe(
      *context, request->enable() ? "Enable" : "Disable", request->run(),
      absl::StrCat(DescribeOptions(request->options()),
                   !request->has_request_id()      ? ""
                   : request->request_id().empty() ? ", all requests"
                                                   : ", request ",
                   request->request_id(),
                   request->config_json().empty() ? "" : ", config ",
                   request->config_json()));
  const auto done = reactor->Done();
  ActAudited(
      entry, HeldBytes(*request),
      [this, request = *request, entry, done,
       actor = auditor_->ActorOf(*context)] {
        control_->plans().SetDumpEnable(request, WhenDone(entry, done), actor);
      },
      done);
  return reactor;
}

grpc::ServerUnaryReactor* ControlService::GetConfig(
    grpc::CallbackServerContext* context, const v1::GetConfigRequest* request,
    v1::GetConfigResponse* response) {
  if (leaves_.elsewhere != nullptr)
    return Answer(context, leaves_.elsewhere(request->run()));
  return RunUnary(context, pool_, [this, request, response]() -> absl::Status {
    RP_ASSIGN_OR_RETURN(*response, control_->plans().GetConfig(request->run()));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ControlService::ListAgents(
    grpc::CallbackServerContext* context, const v1::ListAgentsRequest* request,
    v1::ListAgentsResponse* response) {
  *response = leaves_.list_agents != nullptr
                  ? leaves_.list_agents(request->run())
                  : control_->agents().List(request->run());
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ControlService::Explain(
    grpc::CallbackServerContext* context, const v1::ExplainRequest* request,
    v1::ExplainResponse* response) {
  if (leaves_.elsewhere != nullptr)
    return Answer(context, leaves_.elsewhere(request->run()));
  auto* const reactor = new LateReactor<v1::ExplainResponse>(response);
  // The request is copied, because the call may end before the task runs.
  if (!pool_->Run(
          [this, request = *request, done = reactor->Done()] {
            control_->explanations().Explain(request, done);
          },
          request->ByteSizeLong())) {
    reactor->Done()(
        absl::ResourceExhaustedError("too many calls are waiting; try again"));
  }
  return reactor;
}

grpc::ServerUnaryReactor* ControlService::SetTriggers(
    grpc::CallbackServerContext* context, const v1::SetTriggersRequest* request,
    v1::SetTriggersResponse* response) {
  if (leaves_.elsewhere != nullptr)
    return Answer(context, leaves_.elsewhere(request->run()));
  // A default reactor stays valid until it is finished, whatever the caller
  // does.
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const Auditor::Entry entry =
      auditor_->Describe(*context, "SetTriggers", request->run(),
                         request->spec().ShortDebugString());
  ActAudited(
      entry, HeldBytes(*request),
      [this, request, response, reactor, entry] {
        const absl::StatusOr<uint64_t> ranks =
            control_->triggers().Set(*request);
        entry.End(ranks.status(),
                  absl::StrCat("sent to ", Counted(ranks.value_or(0), "rank")));
        response->set_ranks(ranks.value_or(0));
        reactor->Finish(ToGrpc(ranks.status()));
      },
      [reactor](const absl::Status& status) {
        reactor->Finish(ToGrpc(status));
      });
  return reactor;
}

grpc::ServerUnaryReactor* ControlService::GetTriggers(
    grpc::CallbackServerContext* context, const v1::GetTriggersRequest* request,
    v1::TriggerSpec* response) {
  if (leaves_.elsewhere != nullptr)
    return Answer(context, leaves_.elsewhere(request->run()));
  return RunUnary(context, pool_, [this, request, response]() -> absl::Status {
    RP_ASSIGN_OR_RETURN(*response, control_->triggers().Get(request->run()));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ControlService::ShipFlight(
    grpc::CallbackServerContext* context, const v1::ShipFlightRequest* request,
    v1::ShipFlightResponse* response) {
  if (leaves_.elsewhere != nullptr)
    return Answer(context, leaves_.elsewhere(request->run()));
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const Auditor::Entry entry = auditor_->Describe(
      *context, "ShipFlight", request->run(),
      absl::StrCat("ranks ", absl::StrJoin(request->ranks(), ",")));
  ActAudited(
      entry, HeldBytes(*request),
      [this, request, response, reactor, entry] {
        const absl::StatusOr<uint64_t> ranks =
            control_->triggers().ShipFlight(*request);
        entry.End(ranks.status(),
                  absl::StrCat("asked ", Counted(ranks.value_or(0), "rank")));
        response->set_ranks(ranks.value_or(0));
        reactor->Finish(ToGrpc(ranks.status()));
      },
      [reactor](const absl::Status& status) {
        reactor->Finish(ToGrpc(status));
      });
  return reactor;
}

grpc::ServerUnaryReactor* ControlService::ListEvents(
    grpc::CallbackServerContext* context, const v1::ListEventsRequest* request,
    v1::ListEventsResponse* response) {
  if (leaves_.elsewhere != nullptr)
    return Answer(context, leaves_.elsewhere(request->run()));
  *response = control_->ListEvents(*request);
  return Answer(context, absl::OkStatus());
}

}  // namespace rankprobe
