// SPDX-License-Identifier: Apache-2.0
#include "collector/server/web_page.h"

#include <arpa/inet.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel_security.h"
#include "web/view_server.h"

namespace rankprobe {
namespace {

// The collector has ranks to serve: a page has less than in a process of its own.
// Of an answer that is whole in memory, and of a piece of others: what a service
// lists at once is some MiB.
constexpr int kMaxMessageBytes = 8 << 20;
constexpr uint64_t kMaxTensorBytes = 64 << 20;
constexpr uint64_t kMaxKeptBytes = 128 << 20;
constexpr absl::Duration kStopGrace = absl::Milliseconds(300);

struct IpPort {
  std::string address;
  int port = 0;
};

absl::StatusOr<IpPort> ParseIpPort(const std::string& listen) {
  RP_ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(listen, 0));
  IpPort out{where.host == "localhost" ? "127.0.0.1" : where.host, where.port};
  in_addr four;
  in6_addr six;
  if (::inet_pton(AF_INET, out.address.c_str(), &four) == 1) return out;
  absl::string_view inner = out.address;
  if (absl::ConsumePrefix(&inner, "[") && absl::ConsumeSuffix(&inner, "]")) {
    out.address = std::string(inner);
    if (::inet_pton(AF_INET6, out.address.c_str(), &six) == 1) return out;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(listen, " is no ADDRESS:PORT (IPv6 in brackets)"));
}

Credentials CredentialsOf(absl::string_view token) {
  Credentials credentials;
  if (!token.empty())
    credentials.authorization = absl::StrCat("Bearer ", token);
  return credentials;
}

// The rules of the main port.
class Callers final : public CallerCheck {
 public:
  Callers(std::shared_ptr<const Authorizer> authorizer, const Logger* logger)
      : authorizer_(std::move(authorizer)), log_(logger) {}

  absl::StatusOr<Caller> Identify(absl::string_view token) const override {
    if (token.empty() && !authorizer_->open()) {
      return absl::UnauthenticatedError(
          "this page wants a token of the collector's token file");
    }
    const absl::StatusOr<Principal> principal =
        authorizer_->Identify(CredentialsOf(token));
    if (!principal.ok()) return principal.status();
    Caller caller{principal->name, std::string(RoleName(principal->role))};
    if (principal->role == Role::kOperator || principal->role == Role::kViewer)
      return caller;
    return absl::PermissionDeniedError(absl::StrCat(
        caller.name, " is ", caller.role, "; this page needs viewer"));
  }

  absl::Status MayCall(absl::string_view token,
                       absl::string_view path) const override {
    const absl::Status status =
        authorizer_->Check(CredentialsOf(token), path).status();
    if (!status.ok()) LogRefused(path, status);
    return status;
  }

  // Of a request to the page, whatever it asks for.
  absl::Status CheckToken(absl::string_view token) const {
    const absl::Status status = Identify(token).status();
    // A page that is opened without a token asks for one; that is no attempt.
    if (!status.ok() && !token.empty()) LogRefused("page", status);
    return status;
  }

 private:
  void LogRefused(absl::string_view method, const absl::Status& status) const {
    log_.Log(Logger::Severity::kWarning, "page_refused",
             {{"method", std::string(method)}, {"status", status.ToString()}});
  }

  const std::shared_ptr<const Authorizer> authorizer_;
  mutable LogLimiter log_;
};

class Page final : public WebPage {
 public:
  explicit Page(std::unique_ptr<const Callers> callers)
      : callers_(std::move(callers)) {}

  absl::Status Open(HttpServerOptions options) {
    const Callers* const callers = callers_.get();
    options.check_token = [callers](absl::string_view token) {
      return callers->CheckToken(token);
    };
    RP_ASSIGN_OR_RETURN(http_, HttpServer::Listen(std::move(options)));
    address_ = absl::StrCat(http_->origin(), "/");
    return absl::OkStatus();
  }

  absl::Status Serve(std::shared_ptr<grpc::Channel> channel,
                     const std::string& collector) override {
    GatewayOptions options;
    options.collector = collector;
    options.channel = std::move(channel);
    options.callers = callers_.get();
    // Ranks come first: what a page costs stays within some of the processors.
    options.most_converting =
        std::max<size_t>(1, std::thread::hardware_concurrency() / 4);
    TensorOptions tensors;
    tensors.max_tensor_bytes = kMaxTensorBytes;
    tensors.max_kept_bytes = kMaxKeptBytes;
    tensors.one_at_a_time = true;
    RP_ASSIGN_OR_RETURN(view_, ViewServer::Serve(std::move(http_),
                                                 std::move(options), tensors));
    return absl::OkStatus();
  }

  void Stop() override {
    view_.reset();
    http_.reset();
  }
  std::string address() const override { return address_; }

 private:
  const std::unique_ptr<const Callers> callers_;
  std::string address_;
  // Until it serves.
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<ViewServer> view_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WebPage>> WebPage::Listen(
    const Options& options, std::shared_ptr<const Authorizer> authorizer,
    const Logger* logger) {
  RP_ASSIGN_OR_RETURN(const IpPort where, ParseIpPort(options.listen));
  HttpServerOptions http;
  http.address = where.address;
  http.port = static_cast<uint16_t>(where.port);
  http.names = options.names;
  http.strangers_make_way = true;
  http.stop_grace = kStopGrace;
  if (!options.tls_cert.empty()) {
    TlsIdentity identity;
    RP_ASSIGN_OR_RETURN(identity.cert_pem, ReadSmallFile(options.tls_cert));
    RP_ASSIGN_OR_RETURN(identity.key_pem, ReadSmallFile(options.tls_key));
    http.tls = std::move(identity);
  }
  auto page = std::make_unique<Page>(
      std::make_unique<const Callers>(std::move(authorizer), logger));
  const absl::Status status = page->Open(std::move(http));
  const std::string what = absl::StrCat("--web-listen: ", status.message());
  if (absl::IsFailedPrecondition(status)) return absl::UnavailableError(what);
  if (!status.ok()) return absl::Status(status.code(), what);
  return std::unique_ptr<WebPage>(std::move(page));
}

grpc::ChannelArguments WebPage::Arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  return arguments;
}

absl::Status WebPage::CheckAddress(const std::string& listen) {
  return ParseIpPort(listen).status();
}

}  // namespace rankprobe
