// SPDX-License-Identifier: Apache-2.0
#include "cli/client/client.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "cli/client/known_runs.h"
#include "common/base/collector_address.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// gRPC's text has addresses and error numbers; the usual cases get a sentence
// that is easier to understand.
std::string WhyNobodyAnswers(const grpc::Status& status,
                             const std::string& address, bool secure,
                             double seconds) {
  const std::string text =
      absl::StrReplaceAll(status.error_message(), {{"\n", " "}});
  const std::string nobody =
      absl::StrCat("no rankprobe collector answers at ", address, ": ");
  constexpr absl::string_view kAnother =
      "--collector HOST:PORT or RANKPROBE_COLLECTOR names another address";
  const std::string why = WhyNotReached(text);
  if (absl::StrContains(text, "Connection refused")) {
    return absl::StrCat(nobody, why,
                        "; `rankprobed --data-dir DIR` starts one, ", kAnother);
  }
  if (IsUnixAddress(address)) {
    if (absl::StrContains(text, "No such file or directory")) {
      return absl::StrCat(nobody,
                          "there is no such socket; that of a private "
                          "collector ends with its job");
    }
    if (absl::StrContains(text, "Permission denied") ||
        absl::StrContains(text, "Broken pipe") ||
        absl::StrContains(text, "ocket closed") ||
        absl::StrContains(text, "onnection reset")) {
      return absl::StrCat(
          nobody,
          "only root and the user of the collector may use its Unix socket (",
          text, ")");
    }
  }
  if (absl::StrContains(text, "DNS resolution failed") ||
      absl::StrContains(text, "Domain name not found")) {
    return absl::StrCat(nobody, why, "; ", kAnother);
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::StrCat(nobody,
                        "another program listens there, or a collector of "
                        "another version; ",
                        kAnother);
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::StrCat(nobody, "not within ", seconds,
                        " s; --timeout SECONDS waits longer, ", kAnother);
  }
  if (OtherSideIsSilent(status)) {
    return absl::StrCat(nobody,
                        "the connection is open and a ping was not answered: "
                        "the collector is stopped, or the network was "
                        "interrupted or damaged a message");
  }
  if (ConnectionEnded(status)) {
    return absl::StrCat(
        nobody, "the connection ended before the answer was complete (", text,
        secure ? ")" : "); a collector with TLS needs --tls-ca");
  }
  if (absl::StrContains(text, "ocket closed") ||
      absl::StrContains(text, "onnection reset") ||
      absl::StrContains(text, "andshake")) {
    return absl::StrCat(nobody,
                        secure ? "it does not use TLS as requested, or does "
                                 "not accept these certificates ("
                               : "the connection was closed; a collector with "
                                 "TLS needs --tls-ca (",
                        text, ")");
  }
  return absl::StrCat(nobody, why);
}

}  // namespace

absl::StatusOr<v1::ListAgentsResponse> Client::ListAgents(
    const std::string& run) const {
  v1::ListAgentsRequest request;
  request.set_run(run);
  return Ask(&ControlStub::ListAgents, request);
}

absl::StatusOr<std::vector<v1::StepInfo>> Client::ListSteps(
    const std::string& run) const {
  v1::ListStepsRequest request;
  request.set_run(run);
  std::vector<v1::StepInfo> steps;
  for (;;) {
    RP_ASSIGN_OR_RETURN(v1::ListStepsResponse response,
                        Ask(&ArchiveStub::ListSteps, request));
    for (v1::StepInfo& step : *response.mutable_steps())
      steps.emplace_back().Swap(&step);
    if (!response.truncated() || steps.empty()) return steps;
    // Otherwise a collector that repeats its answer would never end.
    if (request.has_after_step() &&
        steps.back().step() <= request.after_step()) {
      return absl::DataLossError(absl::StrCat(
          "the collector lists steps of run ", run, " again and again"));
    }
    request.set_after_step(steps.back().step());
  }
}

absl::Status Client::ToStatus(const grpc::Status& status) const {
  if (status.ok()) return absl::OkStatus();
  const absl::Status said(static_cast<absl::StatusCode>(status.error_code()),
                          status.error_message());
  if (globals_.local_reader != nullptr &&
      status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::FailedPreconditionError(
        "this command needs a collector; --object-store only reads what is "
        "stored");
  }
  if (globals_.local_reader == nullptr &&
      (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
       status.error_code() == grpc::StatusCode::UNIMPLEMENTED ||
       status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)) {
    return absl::UnavailableError(WhyNobodyAnswers(
        status, globals_.collector, !globals_.security.ca_pem.empty(),
        globals_.timeout_seconds));
  }
  return WithRunsThereAre(*this, said);
}

}  // namespace rankprobe
