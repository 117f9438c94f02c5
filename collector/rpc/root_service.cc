// SPDX-License-Identifier: Apache-2.0
#include "collector/rpc/root_service.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "collector/auth/server_credentials.h"
#include "collector/rpc/server_stream.h"
#include "common/base/monotonic_time.h"

namespace rankprobe {
namespace {

constexpr uint32_t kReportMs = 1000;
constexpr size_t kMaxQueuedNotes = 4;

class LinkStream : public ServerStream<v1::LeafReport, v1::RootNote> {
 public:
  LinkStream(LeafRegistry* registry, const Logger* logger, std::string who)
      : ServerStream(kMaxQueuedNotes),
        registry_(registry),
        logger_(logger),
        who_(std::move(who)) {
    ReadNext();
  }

 protected:
  void OnMessage(v1::LeafReport* untrusted) override {
    if (link_ != 0) {
      const absl::Status status =
          registry_->Report(link_, *untrusted, MonotonicNow());
      return status.ok() ? ReadNext() : FinishOnce(status);
    }
    const absl::StatusOr<uint64_t> link = registry_->Connect(
        *untrusted, who_,
        [handle = handle()](const absl::Status& status) {
          handle->End(status);
        },
        MonotonicNow());
    if (!link.ok()) {
      logger_->Log(Logger::Severity::kWarning, "leaf_refused",
                   {{"who", who_}, {"status", link.status().ToString()}});
      return FinishOnce(link.status());
    }
    link_ = *link;
    leaf_ = untrusted->leaf();
    logger_->Info("leaf_linked",
                  {{"leaf", leaf_}, {"address", untrusted->address()}});
    v1::RootNote note;
    note.set_report_ms(kReportMs);
    handle()->Send(note);
    ReadNext();
  }

  void OnGone() override {
    if (link_ == 0) return;
    registry_->Disconnected(link_, MonotonicNow());
    logger_->Info("leaf_gone", {{"leaf", leaf_}});
  }

 private:
  LeafRegistry* const registry_;
  const Logger* const logger_;
  const std::string who_;
  uint64_t link_ = 0;
  std::string leaf_;
};

}  // namespace

grpc::ServerBidiReactor<v1::LeafReport, v1::RootNote>* RootService::Link(
    grpc::CallbackServerContext* context) {
  // Without a principal no call comes so far.
  const absl::StatusOr<Principal> who =
      authorizer_->Identify(CredentialsOf(*context));
  return new LinkStream(registry_, logger_, who.ok() ? who->name : "nobody");
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
        registry_->Find(*request, MonotonicNow());
    status = found.status();
    if (found.ok()) *response = *std::move(found);
  }
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace rankprobe
