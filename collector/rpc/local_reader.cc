// SPDX-License-Identifier: Apache-2.0
#include "collector/rpc/local_reader.h"

#include <unistd.h>

#include <utility>

#include "collector/archive/export_metrics.h"
#include "collector/auth/auditor.h"
#include "collector/object_store/open_object_store.h"
#include "collector/rpc/archive_service.h"
#include "collector/rpc/worker_pool.h"
#include "collector/sealed/bucket_upkeep.h"
#include "collector/sealed/sealed_reader.h"
#include "common/base/logger.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

constexpr size_t kReaderThreads = 4;
constexpr size_t kReaderQueue = 1024;
// The limit of a collector's clients.
constexpr int kMaxReplyBytes = 64 << 20;

class LocalReaderImpl : public LocalReader {
 public:
  LocalReaderImpl(std::unique_ptr<ObjectStore> objects, FileSystem* file_system,
                  const Clock* clock)
      : objects_(std::move(objects)),
        reader_(objects_.get()),
        upkeep_(objects_.get(), clock, BucketUpkeep::Deletion::kAllowed),
        logger_(STDERR_FILENO, Logger::Severity::kError, clock),
        pool_(kReaderThreads, kReaderQueue),
        quick_pool_(1, kReaderQueue),
        service_(
            &reader_, &upkeep_, /*local=*/nullptr, file_system, &pool_,
            &quick_pool_,
            /*export_roots=*/{}, &logger_,
            [] { return absl::flat_hash_set<uint64_t>(); }, &metrics_),
        auditor_(/*log=*/nullptr, /*authorizer=*/nullptr, &logger_) {
    service_.SetAuditor(&auditor_);
  }
  ~LocalReaderImpl() override {
    if (server_ != nullptr) server_->Shutdown();
  }

  absl::Status Start() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    builder.SetMaxReceiveMessageSize(kMaxReplyBytes);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr)
      return absl::UnavailableError("gRPC cannot start a server");
    return absl::OkStatus();
  }
  std::shared_ptr<grpc::Channel> channel(Interceptors interceptors) override {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxReplyBytes);
    return server_->experimental().InProcessChannelWithInterceptors(
        arguments, std::move(interceptors));
  }

 private:
  const std::unique_ptr<ObjectStore> objects_;
  SealedReader reader_;
  BucketUpkeep upkeep_;
  const Logger logger_;
  ExportMetrics metrics_;
  WorkerPool pool_;
  WorkerPool quick_pool_;
  ArchiveService service_;
  const Auditor auditor_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LocalReader>> LocalReader::Open(
    const std::string& url, FileSystem* file_system, const Clock* clock) {
  ObjectStoreOptions options;
  options.url = url;
  RP_ASSIGN_OR_RETURN(
      std::unique_ptr<ObjectStore> objects,
      OpenObjectStore(options, ProcessEnvironment(), file_system, clock));
  auto reader =
      std::make_unique<LocalReaderImpl>(std::move(objects), file_system, clock);
  RP_RETURN_IF_ERROR(reader->Start());
  return reader;
}

}  // namespace rankprobe
