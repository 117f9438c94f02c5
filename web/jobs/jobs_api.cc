// SPDX-License-Identifier: Apache-2.0
#include "web/jobs/jobs_api.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "web/gateway/json_reply.h"

namespace rankprobe {
namespace {

constexpr size_t kPieceBytes = 256 << 10;
constexpr absl::string_view kBytesType = "application/octet-stream";

// Limits for checks of a run.
constexpr size_t kMostChecks = 1;
constexpr size_t kMostChecksWaiting = 8;
constexpr size_t kMostChecksKept = 4;
constexpr int kMostRanks = 64;

JobRunnerOptions ForChecks(JobRunnerOptions options) {
  options.most_running = kMostChecks;
  options.most_waiting = kMostChecksWaiting;
  options.most_kept = kMostChecksKept;
  return options;
}

template <typename Message>
void SendResult(const absl::StatusOr<Message>& result, HttpReply* reply) {
  if (result.ok()) {
    SendMessage(*result, reply);
  } else {
    SendError(result.status(), reply);
  }
}

}  // namespace

JobsApi::JobsApi(const JobRunnerOptions& options, FileSystem* file_system,
                 Clock* clock)
    : file_system_(file_system),
      max_table_bytes_(options.max_table_bytes),
      runner_(options, file_system, clock),
      checks_(ForChecks(options), file_system, clock) {}

absl::StatusOr<v1::JobSpec> JobsApi::LookOf(absl::string_view method,
                                            const std::string& body) {
  v1::JobSpec spec;
  spec.set_reuse(true);
  std::string& input = (*spec.mutable_options())["input_path"];
  if (method == "Diagnose") {
    v1::DiagnoseRequest request;
    RP_RETURN_IF_ERROR(FromJson(body, &request));
    if (request.run().empty())
      return absl::InvalidArgumentError("expected a run");
    spec.set_command("diagnose");
    input = absl::StrCat("run:", request.run());
    return spec;
  }
  v1::FirstBadRequest request;
  RP_RETURN_IF_ERROR(FromJson(body, &request));
  if (request.run().empty() || request.ranks_size() > kMostRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a run, and at most ", kMostRanks, " ranks"));
  }
  spec.set_command("overflow_check");
  input = absl::StrCat("run:", request.run(), "@", request.step(),
                       request.ranks().empty() ? "" : "/rank",
                       absl::StrJoin(request.ranks(), ","));
  return spec;
}

void JobsApi::Look(absl::string_view method, const std::string& body,
                   HttpReply* reply) {
  const auto look = [&]() -> absl::StatusOr<std::string> {
    RP_ASSIGN_OR_RETURN(const v1::JobSpec spec, LookOf(method, body));
    RP_ASSIGN_OR_RETURN(v1::JobInfo info, checks_.Do(spec, reply));
    if (info.state() == v1::JOB_STATE_DONE) return info.report_json();
    if (info.state() == v1::JOB_STATE_CANCELLED)
      return absl::CancelledError("the server or the client ended it");
    return absl::FailedPreconditionError(
        info.messages().empty() ? "it failed" : info.messages());
  };
  absl::StatusOr<std::string> answer = look();
  if (answer.ok()) {
    reply->Send(200, kJsonType, *std::move(answer));
  } else {
    SendError(answer.status(), reply);
  }
}

absl::StatusOr<Descriptor> JobsApi::OpenFile(absl::string_view name) const {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(name, absl::MaxSplits('/', 1));
  RP_ASSIGN_OR_RETURN(const JobRunner::File found,
                      runner_.FindFile(parts.first, parts.second));
  Descriptor file(
      ::open(found.path().c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file.ok()) {
    return absl::UnavailableError(
        absl::StrCat(parts.second, ": ", std::strerror(errno)));
  }
  return file;
}

bool JobsApi::Answer(absl::string_view method, const std::string& body,
                     HttpReply* reply) {
  v1::JobRef ref;
  if (method == "FirstBad" || method == "Diagnose") {
    Look(method, body, reply);
  } else if (method == "JobList") {
    SendMessage(runner_.List(), reply);
  } else if (method == "JobStart") {
    v1::JobSpec spec;
    const absl::Status status = FromJson(body, &spec);
    SendResult(status.ok() ? runner_.Start(spec) : status, reply);
  } else if (method == "JobGet") {
    const absl::Status status = FromJson(body, &ref);
    SendResult(status.ok() ? runner_.Get(ref.id()) : status, reply);
  } else if (method == "JobCancel") {
    const absl::Status status = FromJson(body, &ref);
    SendResult(status.ok() ? runner_.Cancel(ref.id()) : status, reply);
  } else if (method == "JobDelete") {
    absl::Status status = FromJson(body, &ref);
    if (status.ok()) status = runner_.Delete(ref.id());
    if (status.ok()) {
      SendMessage(ref, reply);
    } else {
      SendError(status, reply);
    }
  } else if (method == "JobRows") {
    v1::JobRowsRequest request;
    const absl::Status status = FromJson(body, &request);
    SendResult(status.ok() ? Rows(request) : status, reply);
  } else if (method == "JobFile") {
    v1::JobFileRequest request;
    const absl::Status status = FromJson(body, &request);
    if (status.ok()) {
      SendFile(request, reply);
    } else {
      SendError(status, reply);
    }
  } else {
    return false;
  }
  return true;
}

absl::StatusOr<v1::JobRows> JobsApi::Rows(const v1::JobRowsRequest& request) {
  RP_ASSIGN_OR_RETURN(const std::shared_ptr<ResultTable> table,
                      Table(request.id(), request.file()));
  return table->Rows(request);
}

absl::StatusOr<std::shared_ptr<ResultTable>> JobsApi::Table(
    const std::string& id, const std::string& file) {
  RP_ASSIGN_OR_RETURN(const JobRunner::File found, runner_.FindFile(id, file));
  // Only one table is read at a time, because reading needs much memory.
  const absl::MutexLock lock(&mutex_);
  const auto at = absl::c_find_if(
      tables_, [&found](const auto& one) { return one.first == found.path(); });
  if (at != tables_.end()) {
    tables_.splice(tables_.begin(), tables_, at);
    return tables_.front().second;
  }
  RP_ASSIGN_OR_RETURN(
      std::shared_ptr<ResultTable> table,
      ResultTable::Read(file_system_, found.path(), max_table_bytes_));
  tables_.emplace_front(found.path(), table);
  uint64_t bytes = 0;
  for (auto it = tables_.begin(); it != tables_.end();) {
    bytes += it->second->bytes();
    it = it != tables_.begin() && bytes > 2 * max_table_bytes_
             ? tables_.erase(it)
             : std::next(it);
  }
  return table;
}

void JobsApi::SendFile(const v1::JobFileRequest& request,
                       HttpReply* reply) const {
  const auto send = [&]() -> absl::Status {
    RP_ASSIGN_OR_RETURN(const JobRunner::File found,
                        runner_.FindFile(request.id(), request.name()));
    RP_ASSIGN_OR_RETURN(const uint64_t size,
                        file_system_->FileSize(found.path()));
    RP_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                        file_system_->OpenForRead(found.path()));
    std::string piece;
    bool begun = false;
    for (uint64_t offset = 0; offset < size; offset += piece.size()) {
      piece.resize(std::min<uint64_t>(kPieceBytes, size - offset));
      const absl::Status read = file->Read(offset, absl::MakeSpan(piece));
      // After the first piece an error can only end the answer early. Its
      // length was not sent, so clients detect the truncation by the size in
      // JobInfo.
      if (!read.ok() && begun) return absl::OkStatus();
      RP_RETURN_IF_ERROR(read);
      if (!begun) reply->Begin(200, kBytesType);
      begun = true;
      if (!reply->Write(piece)) return absl::OkStatus();
    }
    if (!begun) reply->Send(200, kBytesType, "");
    return absl::OkStatus();
  };
  if (const absl::Status status = send(); !status.ok())
    SendError(status, reply);
}

}  // namespace rankprobe
