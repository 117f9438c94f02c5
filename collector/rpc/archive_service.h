// SPDX-License-Identifier: Apache-2.0
// ArchiveService: readers' calls. Each runs on the worker pool; streams write
// with a bounded queue, so that a slow reader holds one worker and no memory.
// Ownership: one per server; the archive, FileSystem and pool outlive it.
#ifndef RANKPROBE_COLLECTOR_RPC_ARCHIVE_SERVICE_H_
#define RANKPROBE_COLLECTOR_RPC_ARCHIVE_SERVICE_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "collector/archive/export_metrics.h"
#include "collector/archive/export_roots.h"
#include "collector/archive/query_sources.h"
#include "collector/auth/auditor.h"
#include "collector/rpc/worker_pool.h"
#include "collector/store/store.h"
#include "common/base/logger.h"
#include "rankprobe/v1/archive.grpc.pb.h"

namespace rankprobe {

class ArchiveService : public v1::ArchiveService::CallbackService {
 public:
  // `export_roots` are the absolute directories below which server-side exports
  // and backups may be written. `live` returns the incarnations that are
  // connected now.
  using LiveFn = std::function<absl::flat_hash_set<uint64_t>()>;
  // `quick_pool` runs short calls, `pool` those that may take long. `local` is
  // the archive if it is a local one, else null: then it has no rollups and
  // cannot be copied.
  ArchiveService(ArchiveReader* archive, ArchiveUpkeep* upkeep, Store* local,
                 FileSystem* file_system, WorkerPool* pool,
                 WorkerPool* quick_pool, std::vector<std::string> export_roots,
                 const Logger* logger, LiveFn live, ExportMetrics* metrics)
      : archive_(archive),
        upkeep_(upkeep),
        local_(local),
        sources_(archive, local),
        pool_(pool),
        quick_pool_(quick_pool),
        export_roots_(std::move(export_roots), file_system),
        logger_(logger),
        live_(std::move(live)),
        metrics_(metrics) {}

  // Called before the server starts. It outlives the service.
  void SetAuditor(const Auditor* auditor) { auditor_ = auditor; }

  grpc::ServerUnaryReactor* ListRuns(grpc::CallbackServerContext* context,
                                     const v1::ListRunsRequest* request,
                                     v1::ListRunsResponse* response) override;
  grpc::ServerUnaryReactor* ListSteps(grpc::CallbackServerContext* context,
                                      const v1::ListStepsRequest* request,
                                      v1::ListStepsResponse* response) override;
  grpc::ServerWriteReactor<v1::CallEntry>* ListCalls(
      grpc::CallbackServerContext* context,
      const v1::ListCallsRequest* request) override;
  grpc::ServerWriteReactor<v1::TensorBytes>* GetTensor(
      grpc::CallbackServerContext* context,
      const v1::GetTensorRequest* request) override;
  grpc::ServerWriteReactor<v1::ExportEvent>* Export(
      grpc::CallbackServerContext* context,
      const v1::ExportRequest* request) override;
  grpc::ServerWriteReactor<v1::GridReply>* QueryGrid(
      grpc::CallbackServerContext* context,
      const v1::QueryGridRequest* request) override;
  grpc::ServerWriteReactor<v1::SeriesReply>* QuerySeries(
      grpc::CallbackServerContext* context,
      const v1::QuerySeriesRequest* request) override;
  grpc::ServerUnaryReactor* ListModules(
      grpc::CallbackServerContext* context,
      const v1::ListModulesRequest* request,
      v1::ListModulesResponse* response) override;
  grpc::ServerWriteReactor<v1::ValuesReply>* ReadValues(
      grpc::CallbackServerContext* context,
      const v1::ReadValuesRequest* request) override;
  grpc::ServerWriteReactor<v1::VerifyReport>* Verify(
      grpc::CallbackServerContext* context,
      const v1::VerifyRequest* request) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const v1::DeleteRequest* request,
                                   v1::DeleteReport* response) override;
  grpc::ServerUnaryReactor* Backup(grpc::CallbackServerContext* context,
                                   const v1::BackupRequest* request,
                                   v1::BackupReport* response) override;
  grpc::ServerWriteReactor<v1::StepLedger>* GetLedger(
      grpc::CallbackServerContext* context,
      const v1::GetLedgerRequest* request) override;

 private:
  // Like RunUnary and RunStream, for readers' calls: the trailing metadata
  // (kAwayKey) names collectors that could not be asked.
  template <typename Work>
  grpc::ServerUnaryReactor* AnswerUnary(grpc::CallbackServerContext* context,
                                        WorkerPool* pool,
                                        const std::string& run, Work work);
  template <typename Response, typename Work>
  grpc::ServerWriteReactor<Response>* AnswerStream(
      grpc::CallbackServerContext* context, const std::string& run, Work work);
  // The answer of a query of collector/archive, and what it could not read.
  template <typename Reply, typename Request, typename Query>
  grpc::ServerWriteReactor<Reply>* AnswerQuery(
      grpc::CallbackServerContext* context, const std::string& run,
      const Request& request, Query query);

  ArchiveReader* const archive_;
  ArchiveUpkeep* const upkeep_;
  Store* const local_;
  const QuerySources sources_;
  WorkerPool* const pool_;
  WorkerPool* const quick_pool_;
  const ExportRoots export_roots_;
  const Logger* const logger_;
  const LiveFn live_;
  ExportMetrics* const metrics_;
  const Auditor* auditor_ = nullptr;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_RPC_ARCHIVE_SERVICE_H_
