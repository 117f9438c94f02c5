// SPDX-License-Identifier: Apache-2.0
#include "web/gateway/gateway.h"

#include <grpc/grpc.h>

#include <chrono>
#include <functional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/damaged_answers.h"
#include "common/rpc/grpc_channel.h"
#include "web/gateway/grid_bytes.h"
#include "web/gateway/json_reply.h"

namespace rankprobe {
namespace {

// As in the command line: a collector reads the records of all steps.
constexpr double kLongSeconds = 3600;
// A collector accepts at most 256 KiB from a connection whose first call is not
// complete.
constexpr size_t kLargeBody = 64 << 10;
// Size of the pieces in which a grid is sent.
constexpr size_t kPieceBytes = 256 << 10;

// When the last user of gRPC 1.51 releases it, it waits up to ten seconds for a
// poller of its own, which is too long for Ctrl-C. One reference is therefore
// kept until the process ends, which does not wait.
void KeepGrpc() {
  static const bool kept = [] {
    grpc_init();
    return true;
  }();
  (void)kept;
}

// Whether the text is not empty and metadata can carry it.
bool IsText(absl::string_view text) {
  return !text.empty() && absl::c_all_of(text, [](unsigned char c) {
    return absl::ascii_isgraph(c);
  });
}

double WaitSeconds(const v1::SwitchOptions& options) {
  return options.timeout_ms() == 0 ? 10 : options.timeout_ms() / 1000.0;
}
// Returns the time that a method waits on purpose, in addition to the usual
// timeout.
double ExtraSeconds(const google::protobuf::Message&) { return 0; }
double ExtraSeconds(const v1::SetConfigRequest& request) {
  return WaitSeconds(request.options());
}
double ExtraSeconds(const v1::SetDumpEnableRequest& request) {
  return WaitSeconds(request.options());
}
double ExtraSeconds(const v1::QueryGridRequest&) { return kLongSeconds; }
double ExtraSeconds(const v1::GetLedgerRequest&) { return kLongSeconds; }
double ExtraSeconds(const v1::VerifyRequest&) { return kLongSeconds; }

}  // namespace

// One request in progress.
class Gateway::Call {
 public:
  Call(const Gateway& gateway, const HttpRequest& asked, HttpReply* reply)
      : gateway_(gateway), asked_(asked), reply_(reply) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  template <typename Request, typename Response, typename Stub>
  void Unary(Stub* stub,
             grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                          Response*)) {
    Request request;
    if (!Read(&request)) return;
    Response response;
    std::vector<std::string> away;
    absl::Status status = StatusOf(ActAgain([&] {
      grpc::ClientContext context;
      const Cancel cancel(reply_, &context);
      Prepare(request, &context);
      const grpc::Status said = (stub->*method)(&context, request, &response);
      const auto [first, last] =
          context.GetServerTrailingMetadata().equal_range(kAwayKey);
      for (auto it = first; it != last; ++it)
        away.emplace_back(it->second.data(), it->second.size());
      return said;
    }));
    std::string json;
    if (status.ok()) status = Convert(response, &json);
    if (status.ok()) AddAway(away, &json);
    if (status.ok() && json.size() > options().max_answer_bytes)
      status = TooLarge();
    if (status.ok()) {
      reply_->Send(200, kJsonType, std::move(json));
    } else {
      SendError(status, reply_);
    }
  }

  absl::Status ReadTensor(const v1::GetTensorRequest& request,
                          std::string* bytes) {
    grpc::ClientContext context;
    const Cancel cancel(reply_, &context);
    SetLimits(options().timeout_seconds + kLongSeconds, &context);
    const auto reader = gateway_.archive_->GetTensor(&context, request);
    v1::TensorBytes piece;
    bool whole = true;
    while (whole && reader->Read(&piece)) {
      // Pieces must be consecutive and must not exceed the requested length.
      whole = piece.offset_bytes() == bytes->size() &&
              piece.data().size() <= request.length_bytes() - bytes->size();
      if (whole) bytes->append(piece.data());
    }
    if (!whole) context.TryCancel();
    const absl::Status status = StatusOf(reader->Finish());
    if (whole && !status.ok()) return status;
    if (!whole || bytes->size() != request.length_bytes())
      return absl::DataLossError("the tensor's bytes are not those asked for");
    return absl::OkStatus();
  }

  template <typename Request, typename Response, typename Stub>
  void Stream(Stub* stub,
              std::unique_ptr<grpc::ClientReader<Response>> (Stub::*method)(
                  grpc::ClientContext*, const Request&)) {
    Request request;
    if (!Read(&request)) return;
    grpc::ClientContext context;
    const Cancel cancel(reply_, &context);
    Prepare(request, &context);
    const auto reader = (stub->*method)(&context, request);
    const bool packed = IsPacked(request);
    const absl::string_view type = packed ? kGridType : kJsonLinesType;
    absl::Status status;
    bool wanted = true;
    bool begun = false;
    size_t bytes = 0;
    // Rows of a grid are sent together, because each is small.
    std::string pending;
    Response response;
    while (wanted && reader->Read(&response)) {
      const size_t before = pending.size();
      status = packed ? Pack(response, &pending) : AddLine(response, &pending);
      bytes += pending.size() - before;
      if (status.ok() && bytes > options().max_answer_bytes)
        status = TooLarge();
      wanted = status.ok();
      if (!wanted || (packed && pending.size() < kPieceBytes)) continue;
      if (!std::exchange(begun, true)) reply_->Begin(200, type);
      wanted = reply_->Write(pending);
      pending.clear();
    }
    if (!wanted) context.TryCancel();
    const grpc::Status ended = reader->Finish();
    if (status.ok()) status = StatusOf(ended);
    if (!status.ok() && !begun) {
      SendError(status, reply_);
    } else if (!begun) {
      reply_->Send(200, type, std::move(pending));
    } else {
      if (!status.ok()) pending.clear();
      if (!status.ok() && packed) AppendGridError(status, &pending);
      if (!status.ok() && !packed)
        pending = absl::StrCat(ErrorJson(status), "\n");
      if (!pending.empty()) (void)reply_->Write(pending);
    }
  }

 private:
  // Cancels a call whose client has disconnected. Declared after the call's
  // context, so that the callback is removed before the context is destroyed.
  class Cancel {
   public:
    Cancel(HttpReply* reply, grpc::ClientContext* context) : reply_(reply) {
      reply_->OnGone([context] { context->TryCancel(); });
    }
    Cancel(const Cancel&) = delete;
    Cancel& operator=(const Cancel&) = delete;
    ~Cancel() { reply_->OnGone(nullptr); }

   private:
    HttpReply* const reply_;
  };

  const GatewayOptions& options() const { return gateway_.options_; }

  bool Read(google::protobuf::Message* request) {
    const absl::Status status = [&] {
      const Turnstile::Turn turn(&gateway_.converting_);
      return FromJson(asked_.body, request);
    }();
    if (status.ok()) return true;
    SendError(status, reply_);
    return false;
  }

  absl::Status AddLine(const google::protobuf::Message& response,
                       std::string* out) const {
    std::string json;
    RP_RETURN_IF_ERROR(Convert(response, &json));
    absl::StrAppend(out, json, "\n");
    return absl::OkStatus();
  }

  static bool IsPacked(const google::protobuf::Message&) { return false; }
  static bool IsPacked(const v1::QueryGridRequest& request) {
    return request.packed();
  }
  static absl::Status Pack(const google::protobuf::Message&, std::string*) {
    return absl::InternalError("no grid");
  }
  absl::Status Pack(const v1::GridReply& reply, std::string* out) const {
    const Turnstile::Turn turn(&gateway_.converting_);
    return AppendGridFrame(reply, out);
  }

  absl::Status Convert(const google::protobuf::Message& response,
                       std::string* json) const {
    const Turnstile::Turn turn(&gateway_.converting_);
    return ToJson(response, json);
  }

  template <typename Request>
  void Prepare(const Request& request, grpc::ClientContext* context) {
    if (asked_.body.size() >= kLargeBody && options().channel == nullptr)
      Introduce();
    SetLimits(options().timeout_seconds + ExtraSeconds(request), context);
  }

  void SetLimits(double seconds, grpc::ClientContext* context) {
    if (options().callers == nullptr) {
      AddToken(options().security, context);
    } else {
      // The audit log needs the caller and the address.
      if (IsText(asked_.token)) {
        context->AddMetadata("authorization",
                             absl::StrCat("Bearer ", asked_.token));
      }
      if (IsText(asked_.peer)) context->AddMetadata(kPagePeerKey, asked_.peer);
    }
    context->set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds)));
  }

  void Introduce() {
    grpc::ClientContext context;
    SetLimits(options().timeout_seconds, &context);
    v1::GetConfigResponse ignored;
    // The answer does not matter: the next call reports errors.
    (void)gateway_.control_->GetConfig(&context, v1::GetConfigRequest(),
                                       &ignored);
  }

  absl::Status StatusOf(const grpc::Status& status) const {
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      return absl::UnavailableError(
          absl::StrCat("no rankprobe collector answers at ",
                       options().collector, ": ", status.error_message()));
    }
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                        status.error_message());
  }

  absl::Status TooLarge() const {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the answer is larger than ", options().max_answer_bytes >> 20,
        " MiB: ask for fewer steps, ranks or names"));
  }

  const Gateway& gateway_;
  const HttpRequest& asked_;
  HttpReply* const reply_;
};

struct Gateway::Row {
  const char* name;
  std::function<void(Call*, const Gateway&)> answer;
};

const std::vector<Gateway::Row>& Gateway::Rows() {
  using Archive = v1::ArchiveService::Stub;
  using Control = v1::ControlService::Stub;
#define RP_UNARY(Stub, stub, Method)                                     \
  {                                                                      \
#Stub "Service/" #Method, [](Call* call, const Gateway& gateway) {     \
     call->Unary<v1::Method##Request>(gateway.stub.get(), &Stub::Method); \
   } \
  }
#define RP_STREAM(Stub, stub, Method)                                     \
  {                                                                       \
#Stub "Service/" #Method, [](Call* call, const Gateway& gateway) {      \
     call->Stream<v1::Method##Request>(gateway.stub.get(), &Stub::Method); \
   } \
  }
  // Methods that read the archive or switch recording, but none that write to
  // the collector's disk or delete.
  static const auto* const rows = new std::vector<Row>{
      RP_UNARY(Archive, archive_, ListRuns),
      RP_UNARY(Archive, archive_, ListSteps),
      RP_STREAM(Archive, archive_, ListCalls),
      RP_STREAM(Archive, archive_, GetLedger),
      RP_STREAM(Archive, archive_, QueryGrid),
      RP_STREAM(Archive, archive_, Verify),
      RP_UNARY(Control, control_, SetConfig),
      RP_UNARY(Control, control_, SetDumpEnable),
      RP_UNARY(Control, control_, GetConfig),
      RP_UNARY(Control, control_, ListAgents),
      RP_UNARY(Control, control_, Explain),
      RP_UNARY(Control, control_, GetTriggers),
      RP_UNARY(Control, control_, SetTriggers),
      RP_UNARY(Control, control_, ShipFlight),
      RP_UNARY(Control, control_, ListEvents),
  };
#undef RP_UNARY
#undef RP_STREAM
  return *rows;
}

Gateway::Gateway(GatewayOptions options)
    : options_(std::move(options)), converting_(options_.most_converting) {
  if (options_.channel != nullptr) {
    control_ = v1::ControlService::NewStub(options_.channel);
    archive_ = v1::ArchiveService::NewStub(options_.channel);
    return;
  }
  KeepGrpc();
  if (options_.collector.empty()) return;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(64 << 20);
  PingWhileCalling(kPingSilence, kPingPatience, &arguments);
  // A page stays open while a collector restarts; by default gRPC may wait up
  // to two minutes before it reconnects.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  const auto channel =
      MakeChannel(options_.collector, options_.security, arguments);
  control_ = v1::ControlService::NewStub(channel);
  archive_ = v1::ArchiveService::NewStub(channel);
}

absl::Status Gateway::CheckCollector() const {
  if (control_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "rankprobe view has no collector: start it with --collector HOST:PORT");
}

absl::Status Gateway::MayCall(absl::string_view token,
                              absl::string_view name) const {
  if (options_.callers == nullptr) return absl::OkStatus();
  return options_.callers->MayCall(token, absl::StrCat("/rankprobe.v1.", name));
}

absl::Status Gateway::MayRead(absl::string_view token) const {
  RP_RETURN_IF_ERROR(CheckCollector());
  return MayCall(token, "ArchiveService/ListCalls");
}

absl::Status Gateway::MayReadTensors(absl::string_view token) const {
  return MayCall(token, "ArchiveService/GetTensor");
}

void Gateway::Answer(absl::string_view method, const HttpRequest& request,
                     HttpReply* reply) const {
  for (const Row& row : Rows()) {
    if (method != row.name) continue;
    absl::Status status = CheckCollector();
    if (status.ok()) status = MayCall(request.token, row.name);
    if (!status.ok()) {
      SendError(status, reply);
      return;
    }
    Call call(*this, request, reply);
    row.answer(&call, *this);
    return;
  }
  SendError(absl::NotFoundError("there is no such method"), reply);
}

absl::Status Gateway::ReadTensor(const v1::GetTensorRequest& request,
                                 const HttpRequest& asked, HttpReply* reply,
                                 std::string* bytes) const {
  RP_RETURN_IF_ERROR(CheckCollector());
  RP_RETURN_IF_ERROR(MayReadTensors(asked.token));
  return Call(*this, asked, reply).ReadTensor(request, bytes);
}

std::vector<std::string> Gateway::Methods() {
  std::vector<std::string> names;
  for (const Row& row : Rows()) names.emplace_back(row.name);
  return names;
}

}  // namespace rankprobe
