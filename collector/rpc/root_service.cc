// SPDX-License-Identifier: Apache-2.0
#include "collector/rpc/root_service.h"

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "collector/auth/server_credentials.h"
#include "collector/rpc/server_stream.h"
#include "common/base/monotonic_time.h"
#include "common/base/status_macros.h"
#include "common/rpc/checked_message.h"

namespace rankprobe {
namespace {

constexpr uint32_t kReportMs = 1000;
// Limit for notes that a leaf has not read; directives of many ranks share one.
constexpr size_t kMaxQueuedNotes = 1 << 12;
constexpr int kMaxDirectivesOfNote = 256;
constexpr size_t kMaxSessionBytes = 64;
constexpr size_t kMaxTextBytes = 512;

class LinkStream : public ServerStream<v1::LeafReport, v1::RootNote> {
 public:
  LinkStream(LeafRegistry* registry, LeafQuestions* questions,
             AgentSessions* agents, const Logger* logger, std::string who,
             Runner run)
      : ServerStream(kMaxQueuedNotes),
        registry_(registry),
        questions_(questions),
        agents_(agents),
        logger_(logger),
        who_(std::move(who)),
        run_(std::move(run)) {
    ReadNext();
  }

 protected:
  void OnMessage(v1::LeafReport* untrusted) override {
    if (IsDamaged(*untrusted)) {
      return FinishOnce(absl::DataLossError(
          "a report was damaged in transit: it does not match its checksum"));
    }
    const absl::Status status = TakeReport(*untrusted);
    if (!status.ok()) return FinishOnce(status);
    if (untrusted->events().empty()) return ReadNext();
    // Some of the events wait for the store.
    GoOnElsewhere(run_, untrusted->ByteSizeLong(), [this, untrusted] {
      for (const v1::RelayedEvent& event : untrusted->events()) {
        const absl::Status taken = TakeEvent(event);
        if (taken.ok()) continue;
        FinishOnce(taken);
        return false;
      }
      return true;
    });
  }

  void OnGone() override {
    if (link_ == 0) return;
    registry_->Disconnected(link_, MonotonicNow());
    questions_->Gone(link_);
    for (const auto& [leafs, session] : sessions_)
      agents_->Disconnected(session, "its leaf has disconnected");
    logger_->Info("leaf_gone", {{"leaf", leaf_}});
  }

  bool Merge(v1::RootNote* queued, const v1::RootNote& next) override {
    if (queued->directives_size() + next.directives_size() +
            queued->questions_size() + next.questions_size() >
        kMaxDirectivesOfNote)
      return false;
    if (next.report_ms() > 0) queued->set_report_ms(next.report_ms());
    queued->mutable_directives()->MergeFrom(next.directives());
    queued->mutable_questions()->MergeFrom(next.questions());
    return true;
  }

 private:
  absl::Status TakeReport(const v1::LeafReport& untrusted) {
    if (link_ != 0) {
      RP_RETURN_IF_ERROR(registry_->Report(link_, untrusted, MonotonicNow()));
      questions_->Heard(link_, untrusted);
      return absl::OkStatus();
    }
    const absl::StatusOr<uint64_t> link = registry_->Connect(
        untrusted, who_,
        [handle = handle()](const absl::Status& status) {
          handle->End(status);
        },
        MonotonicNow());
    if (!link.ok()) {
      logger_->Log(Logger::Severity::kWarning, "leaf_refused",
                   {{"who", who_}, {"status", link.status().ToString()}});
      return link.status();
    }
    link_ = *link;
    leaf_ = untrusted.leaf();
    logger_->Info("leaf_linked",
                  {{"leaf", leaf_}, {"address", untrusted.address()}});
    v1::RootNote note;
    note.set_report_ms(kReportMs);
    handle()->Send(note);
    // After the first note, which contains nothing else.
    questions_->Linked(
        link_, untrusted, who_,
        [handle = handle()](const v1::RootNote& next) { handle->Send(next); });
    return absl::OkStatus();
  }

  absl::Status TakeEvent(const v1::RelayedEvent& untrusted) {
    const std::string& name = untrusted.session();
    if (name.empty() || name.size() > kMaxSessionBytes)
      return absl::InvalidArgumentError("a session has a name of 64 bytes");
    const auto known = sessions_.find(name);
    if (untrusted.has_gone()) {
      if (known == sessions_.end()) return absl::OkStatus();
      agents_->Disconnected(known->second,
                            untrusted.gone().substr(0, kMaxTextBytes));
      sessions_.erase(known);
      return absl::OkStatus();
    }
    if (untrusted.event().has_hello()) {
      if (known != sessions_.end())
        return absl::InvalidArgumentError("a second hello of a session");
      questions_->Began(link_, untrusted.event().hello().identity().run());
      return Admit(untrusted);
    }
    // The rank was refused here.
    if (known == sessions_.end()) return absl::OkStatus();
    agents_->OnEvent(known->second, untrusted.event());
    return absl::OkStatus();
  }

  absl::Status Admit(const v1::RelayedEvent& untrusted) {
    const v1::RelayedPeer& who = untrusted.peer();
    Peer peer;
    peer.principal =
        Principal::Of(Role::kAgent, who.name().substr(0, kMaxTextBytes));
    peer.principal.run = who.run();
    for (int i = 0; i + 1 < who.ranks_size(); i += 2)
      peer.principal.ranks.emplace_back(who.ranks(i), who.ranks(i + 1));
    peer.anonymous = who.anonymous();
    peer.address = who.address().substr(0, kMaxTextBytes);
    const auto send = [handle = handle(), name = untrusted.session()](
                          const v1::Directive& directive) {
      v1::RootNote note;
      v1::RelayedDirective* const relayed = note.add_directives();
      relayed->set_session(name);
      *relayed->mutable_directive() = directive;
      handle->Send(note);
    };
    const absl::StatusOr<AgentSessions::Admission> admission =
        agents_->Admit(untrusted.event().hello(), send, std::move(peer));
    if (absl::IsUnavailable(admission.status()) ||
        absl::IsResourceExhausted(admission.status()))
      return admission.status();
    if (!admission.ok()) {
      v1::Directive goodbye;
      goodbye.mutable_goodbye()->set_reason(
          std::string(admission.status().message()));
      send(goodbye);
      return absl::OkStatus();
    }
    const v1::Welcome& welcome = admission->welcome;
    sessions_[untrusted.session()] = welcome.session_id();
    // The leaf has already welcomed the rank, so the plan is sent separately.
    if (welcome.has_plan()) {
      v1::Directive adopt;
      *adopt.mutable_adopt()->mutable_plan() = welcome.plan();
      send(adopt);
    }
    if (welcome.has_triggers()) {
      v1::Directive triggers;
      *triggers.mutable_triggers() = welcome.triggers();
      send(triggers);
    }
    if (welcome.has_other()) {
      v1::Directive other;
      *other.mutable_other() = welcome.other();
      send(other);
    }
    if (welcome.degrade() > 0) {
      v1::Directive degrade;
      degrade.mutable_degrade()->set_level(welcome.degrade());
      send(degrade);
    }
    return absl::OkStatus();
  }

  LeafRegistry* const registry_;
  LeafQuestions* const questions_;
  AgentSessions* const agents_;
  const Logger* const logger_;
  const std::string who_;
  const Runner run_;
  uint64_t link_ = 0;
  std::string leaf_;
  // Maps the leaf's session ids to the control plane's.
  std::map<std::string, std::string> sessions_;
};

}  // namespace

std::string RootService::NameOf(
    const grpc::CallbackServerContext& context) const {
  // An unauthorized call does not get this far.
  const absl::StatusOr<Principal> who =
      authorizer_->Identify(CredentialsOf(context));
  return who.ok() ? who->name : "nobody";
}

grpc::ServerBidiReactor<v1::LeafReport, v1::RootNote>* RootService::Link(
    grpc::CallbackServerContext* context) {
  return new LinkStream(registry_, questions_, agents_, logger_,
                        NameOf(*context), run_);
}

grpc::ServerReadReactor<v1::LiveAnswer>* RootService::Answer(
    grpc::CallbackServerContext* context, v1::LiveAnswered* response) {
  return questions_->Receive(NameOf(*context));
}

grpc::ServerUnaryReactor* RootService::FindCollector(
    grpc::CallbackServerContext* context,
    const v1::FindCollectorRequest* request, v1::FoundCollector* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const v1::Identity& identity = request->identity();
  absl::Status status;
  if (!authorizer_->open()) {
    const absl::StatusOr<Principal> who =
        authorizer_->Identify(CredentialsOf(*context));
    status = who.ok() ? who->MayBe(identity.run(),
                                   identity.has_rank()
                                       ? std::optional<int64_t>(identity.rank())
                                       : std::nullopt)
                      : who.status();
  }
  if (status.ok()) {
    absl::StatusOr<v1::FoundCollector> found =
        registry_->Find(*request, MonotonicNow(), NameOf(*context));
    status = found.status();
    if (found.ok()) *response = *std::move(found);
  }
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace rankprobe
