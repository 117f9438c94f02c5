// SPDX-License-Identifier: Apache-2.0
// Channels and call metadata made from a ChannelSecurity, and the outcome of a
// call. Stateless.
#ifndef RANKPROBE_COMMON_RPC_GRPC_CHANNEL_H_
#define RANKPROBE_COMMON_RPC_GRPC_CHANNEL_H_

#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_interceptor.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/collector_address.h"
#include "common/rpc/channel_security.h"
#include "common/rpc/damaged_answers.h"
#include "common/text/visible_text.h"

namespace rankprobe {

// Metadata of a call within the collector's process, for the audit log: the
// browser for which it is made. It is ignored in other calls.
inline constexpr char kPagePeerKey[] = "rankprobe-page-peer";

// Trailing metadata of an answer of an archive with several collectors: a line
// about a collector that could not be asked (ArchiveReader::Unavailable).
inline constexpr char kAwayKey[] = "rankprobe-away-bin";

using Interceptors = std::vector<
    std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>;

// For commands and pages, whose streamed answers have no other timeout.
inline constexpr absl::Duration kPingSilence = absl::Seconds(6);
inline constexpr absl::Duration kPingPatience = absl::Seconds(10);
// Ends the connection, and its calls with UNAVAILABLE, if the other side does
// not acknowledge a ping within `patience`. During a call a ping is sent after
// `silence`, which must exceed the minimum of 5 s that a collector accepts
// (server.cc).
inline void PingWhileCalling(absl::Duration silence, absl::Duration patience,
                             grpc::ChannelArguments* arguments) {
  arguments->SetInt(GRPC_ARG_KEEPALIVE_TIME_MS,
                    static_cast<int>(absl::ToInt64Milliseconds(silence)));
  arguments->SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                    static_cast<int>(absl::ToInt64Milliseconds(patience)));
  // Otherwise a call that sends nothing for long would send only two pings.
  arguments->SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

// `address` has the form of common/base/collector_address.h.
inline std::shared_ptr<grpc::Channel> MakeChannel(
    const std::string& address, const ChannelSecurity& security,
    grpc::ChannelArguments arguments, Interceptors interceptors = {}) {
  const std::string target = GrpcTarget(address);
  interceptors.push_back(WatchForDamage());
  // The collector's address is explicit, so proxies of the environment are not
  // used.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (security.ca_pem.empty()) {
    return grpc::experimental::CreateCustomChannelWithInterceptors(
        target, grpc::InsecureChannelCredentials(), arguments,
        std::move(interceptors));
  }
  if (!security.server_name.empty())
    arguments.SetSslTargetNameOverride(security.server_name);
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = security.ca_pem;
  options.pem_cert_chain = security.cert_pem;
  options.pem_private_key = security.key_pem;
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      target, grpc::SslCredentials(options), arguments,
      std::move(interceptors));
}

// Turns off gRPC's own log on stderr, which repeats the status of calls in raw
// form. The environment variable GRPC_VERBOSITY turns it on again.
inline void SilenceGrpcLog() {
  if (std::getenv("GRPC_VERBOSITY") == nullptr)
    gpr_set_log_verbosity(
        static_cast<gpr_log_severity>(GPR_LOG_SEVERITY_ERROR + 1));
}

// Escapes the other side's message, which is not trusted and may be printed on
// a terminal.
inline absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      VisibleText(status.error_message()));
}

// Adds the token, if there is one, to a call that has not begun.
inline void AddToken(const ChannelSecurity& security,
                     grpc::ClientContext* context) {
  if (!security.token.empty()) {
    context->AddMetadata("authorization",
                         absl::StrCat("Bearer ", security.token));
  }
}

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RPC_GRPC_CHANNEL_H_
