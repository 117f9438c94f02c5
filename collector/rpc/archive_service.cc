// SPDX-License-Identifier: Apache-2.0
#include "collector/rpc/archive_service.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collector/archive/each_call.h"
#include "collector/archive/export.h"
#include "collector/archive/ledger.h"
#include "collector/archive/query_grid.h"
#include "collector/archive/query_series.h"
#include "collector/archive/read_values.h"
#include "collector/rpc/stream_sink.h"
#include "collector/rpc/stream_writer.h"
#include "common/base/monotonic_time.h"
#include "common/base/status_macros.h"
#include "common/rpc/grpc_channel.h"
#include "common/text/counted.h"

namespace rankprobe {
namespace {

// Threads of one export into a directory.
constexpr int kExportThreads = 4;

// Limit for the runs in one answer.
constexpr uint32_t kMaxRunsListed = 10000;
constexpr size_t kMaxStepsListed = 10000;

// Limit in one answer's metadata, of which a client accepts 8 KiB; used twice,
// for unreachable collectors and for unreadable data.
constexpr size_t kMaxAwayBytes = 3 << 10;

// UNAVAILABLE would mean that this process cannot be reached.
absl::Status ToCaller(const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return status;
  return absl::AbortedError(status.message());
}

// Returns as many lines as fit in the metadata.
std::vector<std::string> AwayTrailer(const std::vector<std::string>& away) {
  std::vector<std::string> said;
  size_t bytes = 0;
  for (const std::string& why : away) {
    bytes += why.size() + 64;
    if (bytes > kMaxAwayBytes) {
      said.push_back(absl::StrCat(away.size() - said.size(), " more"));
      break;
    }
    said.push_back(why);
  }
  return said;
}

std::vector<std::string> NotInAnswer(ArchiveReader* archive,
                                     const std::string& run,
                                     MonotonicTime began) {
  std::vector<std::string> texts = archive->Unavailable(run, began);
  for (std::string& fault : archive->Faults(run))
    texts.push_back(std::move(fault));
  return texts;
}

absl::Status NotLocal() {
  return absl::FailedPreconditionError(
      "this collector serves a read-only archive of an object store: it keeps "
      "no rollups and copies nothing; ask a collector with a --data-dir of its "
      "own");
}

}  // namespace

template <typename Work>
grpc::ServerUnaryReactor* ArchiveService::AnswerUnary(
    grpc::CallbackServerContext* context, WorkerPool* pool,
    const std::string& run, Work work) {
  return RunUnary(context, pool, [this, context, run, work = std::move(work)] {
    const MonotonicTime began = MonotonicNow();
    const absl::Status status = work();
    for (const std::string& why :
         AwayTrailer(NotInAnswer(archive_, run, began)))
      context->AddTrailingMetadata(kAwayKey, why);
    return ToCaller(status);
  });
}

template <typename Response, typename Work>
grpc::ServerWriteReactor<Response>* ArchiveService::AnswerStream(
    grpc::CallbackServerContext* context, const std::string& run, Work work) {
  return RunStream<Response>(context, pool_,
                             [this, run, work = std::move(work)](
                                 typename StreamWriter<Response>::Handle* out) {
                               const MonotonicTime began = MonotonicNow();
                               const absl::Status status = work(out);
                               for (const std::string& why : AwayTrailer(
                                        NotInAnswer(archive_, run, began)))
                                 out->AddTrailer(kAwayKey, why);
                               return ToCaller(status);
                             });
}

template <typename Reply, typename Request, typename Query>
grpc::ServerWriteReactor<Reply>* ArchiveService::AnswerQuery(
    grpc::CallbackServerContext* context, const std::string& run,
    const Request& request, Query query) {
  return AnswerStream<Reply>(
      context, run,
      [this, request, query](typename StreamWriter<Reply>::Handle* out) {
        std::vector<std::string> unreadable;
        const absl::Status status = query(
            sources_, request, [out] { return out->cancelled(); },
            [out](Reply reply) { return out->Write(std::move(reply)); },
            &unreadable);
        for (const std::string& why : AwayTrailer(unreadable))
          out->AddTrailer(kAwayKey, why);
        return status;
      });
}

grpc::ServerUnaryReactor* ArchiveService::ListRuns(
    grpc::CallbackServerContext* context, const v1::ListRunsRequest* request,
    v1::ListRunsResponse* response) {
  return AnswerUnary(
      context, quick_pool_, "", [this, request, response]() -> absl::Status {
        const size_t limit =
            request->limit() == 0
                ? kMaxRunsListed
                : std::min<uint32_t>(request->limit(), kMaxRunsListed);
        RP_ASSIGN_OR_RETURN(std::vector<v1::RunInfo> runs,
                            archive_->ListRuns());
        absl::c_sort(runs, [](const v1::RunInfo& a, const v1::RunInfo& b) {
          return a.run() < b.run();
        });
        auto next = absl::c_upper_bound(
            runs, request->after_run(),
            [](const std::string& after, const v1::RunInfo& run) {
              return after < run.run();
            });
        for (size_t i = 0; i < limit && next != runs.end(); ++i)
          response->add_runs()->Swap(&*next++);
        response->set_truncated(next != runs.end());
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* ArchiveService::ListSteps(
    grpc::CallbackServerContext* context, const v1::ListStepsRequest* request,
    v1::ListStepsResponse* response) {
  return AnswerUnary(
      context, quick_pool_, request->run(),
      [this, request, response]() -> absl::Status {
        std::optional<int64_t> after;
        if (request->has_after_step()) after = request->after_step();
        const size_t most =
            request->limit() == 0
                ? kMaxStepsListed
                : std::min<size_t>(request->limit(), kMaxStepsListed);
        RP_ASSIGN_OR_RETURN(
            ArchiveReader::SomeSteps some,
            archive_->ListStepsAfter(request->run(), after, most));
        for (v1::StepInfo& step : some.steps)
          response->add_steps()->Swap(&step);
        response->set_truncated(some.more);
        return absl::OkStatus();
      });
}

grpc::ServerWriteReactor<v1::CallEntry>* ArchiveService::ListCalls(
    grpc::CallbackServerContext* context, const v1::ListCallsRequest* request) {
  return AnswerStream<v1::CallEntry>(
      context, request->run(),
      [this, request = *request](
          StreamWriter<v1::CallEntry>::Handle* out) -> absl::Status {
        RP_ASSIGN_OR_RETURN(
            const std::vector<v1::StepInfo> steps,
            archive_->ListSteps(request.run(), IntSet({request.step()})));
        for (const v1::StepInfo& step : steps) {
          const bool same_process =
              request.has_rank()
                  ? step.has_rank() && step.rank() == request.rank()
                  : !step.has_rank() && step.pid() == request.pid();
          if (!same_process) continue;
          StepKey key{.run = request.run(),
                      .step = step.step(),
                      .incarnation = step.incarnation()};
          return ForEachCall(
              archive_, key, request.context(),
              [&](const v1::CallEntry& entry) {
                if (!absl::StrContains(entry.entry(), request.contains()))
                  return absl::OkStatus();
                return out->Write(entry);
              });
        }
        return absl::NotFoundError(
            "nothing is recorded for this step and process");
      });
}

grpc::ServerWriteReactor<v1::TensorBytes>* ArchiveService::GetTensor(
    grpc::CallbackServerContext* context, const v1::GetTensorRequest* request) {
  return AnswerStream<v1::TensorBytes>(
      context, request->run(),
      [this, request = *request](
          StreamWriter<v1::TensorBytes>::Handle* out) -> absl::Status {
        uint64_t offset = 0;
        return archive_->ReadPayload(request.run(), request.digest(),
                                     request.length_bytes(),
                                     [&](absl::string_view data) {
                                       v1::TensorBytes bytes;
                                       bytes.set_offset_bytes(offset);
                                       bytes.set_data(data.data(), data.size());
                                       offset += data.size();
                                       return out->Write(std::move(bytes));
                                     });
      });
}

grpc::ServerWriteReactor<v1::StepLedger>* ArchiveService::GetLedger(
    grpc::CallbackServerContext* context, const v1::GetLedgerRequest* request) {
  return AnswerStream<v1::StepLedger>(
      context, request->run(),
      [this, request = *request](
          StreamWriter<v1::StepLedger>::Handle* out) -> absl::Status {
        const MonotonicTime began = MonotonicNow();
        const IntSet chosen_steps(
            {request.steps().begin(), request.steps().end()});
        const IntSet chosen_ranks(
            {request.ranks().begin(), request.ranks().end()});
        RP_ASSIGN_OR_RETURN(const std::vector<v1::StepInfo> steps,
                            archive_->ListSteps(request.run(), chosen_steps));
        RP_ASSIGN_OR_RETURN(const RefusedPayloads refused,
                            RefusedPayloadsOf(archive_, request.run()));
        for (const v1::StepInfo& step : steps) {
          if (!chosen_ranks.all() &&
              (!step.has_rank() || !chosen_ranks.Contains(step.rank())))
            continue;
          v1::StepLedger ledger = SummarizeStep(step);
          if (request.details()) {
            RP_ASSIGN_OR_RETURN(
                ledger, AccountStep(archive_, request.run(), step, refused));
          }
          RP_RETURN_IF_ERROR(out->Write(std::move(ledger)));
        }
        std::vector<v1::StepLedger> lost;
        RP_RETURN_IF_ERROR(archive_->ForEachIncarnation(
            request.run(), [&](const v1::IncarnationRow& row) {
              if (auto frames = AccountFrames(row); frames.has_value())
                lost.push_back(*std::move(frames));
            }));
        for (v1::StepLedger& ledger : lost)
          RP_RETURN_IF_ERROR(out->Write(std::move(ledger)));
        for (const std::string& why :
             archive_->Unavailable(request.run(), began))
          RP_RETURN_IF_ERROR(out->Write(AccountAway(why)));
        for (const std::string& why : archive_->Faults(request.run()))
          RP_RETURN_IF_ERROR(out->Write(AccountFault(why)));
        return absl::OkStatus();
      });
}

grpc::ServerWriteReactor<v1::GridReply>* ArchiveService::QueryGrid(
    grpc::CallbackServerContext* context, const v1::QueryGridRequest* request) {
  return AnswerQuery<v1::GridReply>(context, request->run(), *request,
                                    rankprobe::QueryGrid);
}

grpc::ServerWriteReactor<v1::SeriesReply>* ArchiveService::QuerySeries(
    grpc::CallbackServerContext* context,
    const v1::QuerySeriesRequest* request) {
  return AnswerQuery<v1::SeriesReply>(context, request->grid().run(), *request,
                                      rankprobe::QuerySeries);
}

grpc::ServerUnaryReactor* ArchiveService::ListModules(
    grpc::CallbackServerContext* context, const v1::ListModulesRequest* request,
    v1::ListModulesResponse* response) {
  return AnswerUnary(context, pool_, request->run(),
                     [this, request, response]() -> absl::Status {
                       RP_ASSIGN_OR_RETURN(*response, rankprobe::ListModules(
                                                          sources_, *request));
                       return absl::OkStatus();
                     });
}

grpc::ServerWriteReactor<v1::ValuesReply>* ArchiveService::ReadValues(
    grpc::CallbackServerContext* context,
    const v1::ReadValuesRequest* request) {
  return AnswerQuery<v1::ValuesReply>(context, request->run(), *request,
                                      rankprobe::ReadValues);
}

grpc::ServerWriteReactor<v1::VerifyReport>* ArchiveService::Verify(
    grpc::CallbackServerContext* context, const v1::VerifyRequest* request) {
  return RunStream<v1::VerifyReport>(
      context, pool_,
      [this, request = *request](
          StreamWriter<v1::VerifyReport>::Handle* out) -> absl::Status {
        if (request.subset_percent() > 100)
          return absl::InvalidArgumentError("a subset is 1 to 100 percent");
        RP_ASSIGN_OR_RETURN(v1::VerifyReport report,
                            upkeep_->Verify(request, [out](const auto& so_far) {
                              return out->Write(so_far);
                            }));
        logger_->Info("verified",
                      {{"payloads", absl::StrCat(report.payloads())},
                       {"faults", absl::StrCat(report.fault_count())}});
        return out->Write(std::move(report));
      });
}

grpc::ServerUnaryReactor* ArchiveService::Delete(
    grpc::CallbackServerContext* context, const v1::DeleteRequest* request,
    v1::DeleteReport* response) {
  const Auditor::Entry audit = auditor_->Describe(
      *context, "Delete", request->run(),
      request->steps_size() == 0
          ? "the complete run"
          : absl::StrCat("steps ", absl::StrJoin(request->steps(), ",")));
  return RunUnary(
      context, pool_, [this, request, response, audit]() -> absl::Status {
        audit.Begin();
        DeleteOptions options;
        options.run = request->run();
        if (request->steps_size() > 0)
          options.steps.emplace(request->steps().begin(),
                                request->steps().end());
        options.live_incarnations = live_();
        absl::StatusOr<v1::DeleteReport> report = upkeep_->Delete(options);
        audit.End(report.status(),
                  report.ok()
                      ? absl::StrCat(Counted(report->steps(), "step"), ", ",
                                     report->file_bytes(), " bytes")
                      : "");
        if (!report.ok()) return report.status();
        *response = *std::move(report);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* ArchiveService::Backup(
    grpc::CallbackServerContext* context, const v1::BackupRequest* request,
    v1::BackupReport* response) {
  const Auditor::Entry audit =
      auditor_->Describe(*context, "Backup", /*run=*/"",
                         absl::StrCat("to ", request->server_directory()));
  return RunUnary(
      context, pool_, [this, request, response, audit]() -> absl::Status {
        audit.Begin();
        const absl::Status status = [&]() -> absl::Status {
          if (local_ == nullptr) return NotLocal();
          RP_ASSIGN_OR_RETURN(
              const ExportRoots::Places places,
              export_roots_.Open({request->server_directory()}));
          RP_ASSIGN_OR_RETURN(
              *response,
              local_->Backup(places.files.get(), places.directories.front(),
                             request->copy()));
          return absl::OkStatus();
        }();
        audit.End(status, absl::StrCat(response->segments(), " segments"));
        return status;
      });
}

grpc::ServerWriteReactor<v1::ExportEvent>* ArchiveService::Export(
    grpc::CallbackServerContext* context, const v1::ExportRequest* request) {
  logger_->Info("export", {{"run", request->run()},
                           {"directory", request->server_directory()}});
  // Viewers may read; writing to the collector's disk requires an operator.
  std::optional<Auditor::Entry> audit;
  absl::Status allowed;
  if (!request->server_directory().empty() ||
      !request->staging_directory().empty()) {
    audit = auditor_->Describe(
        *context, "Export", request->run(),
        absl::StrCat("to ", request->server_directory(), ", staged in ",
                     request->staging_directory()));
    allowed = auditor_->CheckOperator(
        *context, "an export to the collector's own directories");
  }
  return AnswerStream<v1::ExportEvent>(
      context, request->run(),
      [this, request = *request, audit,
       allowed](StreamWriter<v1::ExportEvent>::Handle* out) -> absl::Status {
        const MonotonicTime began = MonotonicNow();
        if (audit.has_value()) audit->Begin();
        const absl::Status status = [&]() -> absl::Status {
          RP_RETURN_IF_ERROR(allowed);
          ExportOptions options;
          options.run = request.run();
          options.steps =
              IntSet({request.steps().begin(), request.steps().end()});
          options.ranks =
              IntSet({request.ranks().begin(), request.ranks().end()});
          options.progress = [out](const v1::ExportProgress& progress) {
            v1::ExportEvent event;
            *event.mutable_progress() = progress;
            return out->Write(std::move(event));
          };
          options.request = request.request();
          options.link = request.link();
          options.resume = request.resume();
          options.manifest_in_reply = request.manifest_in_reply();
          options.without_payloads = request.without_payloads();
          options.unchecked = request.unchecked();
          v1::ExportEvent event;
          if (request.server_directory().empty()) {
            StreamSink sink(request, [out](v1::ExportEvent file) {
              return out->Write(std::move(file));
            });
            RP_ASSIGN_OR_RETURN(*event.mutable_done(),
                                ExportRun(archive_, options, &sink));
            RP_RETURN_IF_ERROR(sink.Flush());
          } else {
            std::vector<std::string> wanted{request.server_directory()};
            if (!request.staging_directory().empty())
              wanted.push_back(request.staging_directory());
            RP_ASSIGN_OR_RETURN(const ExportRoots::Places places,
                                export_roots_.Open(wanted));
            if (places.directories.size() > 1)
              options.staging_directory = places.directories[1];
            options.threads = kExportThreads;
            RP_ASSIGN_OR_RETURN(
                *event.mutable_done(),
                ExportRunToDirectory(archive_, options, places.files.get(),
                                     places.directories[0]));
          }
          metrics_->bytes += event.done().bytes();
          return out->Write(std::move(event));
        }();
        if (status.ok()) {
          metrics_->seconds.Add(Since(began));
        } else {
          ++metrics_->failed;
        }
        if (audit.has_value()) audit->End(status, "exported");
        return status;
      });
}

}  // namespace rankprobe
