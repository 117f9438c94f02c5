// ArchiveService: readers' calls. Each runs on the worker pool; streams write
// with a bounded queue, so that a slow reader holds one worker and no memory.
// Ownership: one per server; the Store, FileSystem and pool outlive it.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_SERVICE_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_SERVICE_H_

#include <string>
#include <vector>

#include "collector/logger.h"
#include "collector/store/store.h"
#include "collector/worker_pool.h"
#include "rankprobe/v1/archive.grpc.pb.h"

namespace rankprobe {

class ArchiveService : public v1::ArchiveService::CallbackService {
 public:
  // `export_roots`: absolute directories below which server-side exports may
  // go.
  ArchiveService(Store* store, FileSystem* file_system, WorkerPool* pool,
                 std::vector<std::string> export_roots, const Logger* logger)
      : store_(store),
        file_system_(file_system),
        pool_(pool),
        export_roots_(std::move(export_roots)),
        logger_(logger) {}

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
  grpc::ServerWriteReactor<v1::StepLedger>* GetLedger(
      grpc::CallbackServerContext* context,
      const v1::GetLedgerRequest* request) override;

 private:
  // The directory if it lies below an allowed root; PERMISSION_DENIED.
  absl::StatusOr<std::string> AllowedDirectory(
      const std::string& untrusted) const;

  Store* const store_;
  FileSystem* const file_system_;
  WorkerPool* const pool_;
  const std::vector<std::string> export_roots_;
  const Logger* const logger_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_SERVICE_H_
