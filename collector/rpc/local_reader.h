// SPDX-License-Identifier: Apache-2.0
// ArchiveService over an object store inside this process: a holder of its
// channel makes calls as to a collector. There is no port and no
// ControlService.
// Ownership: file system and clock outlive it; it outlives calls. Threads: as
// gRPC's. Failure of Open: INVALID_ARGUMENT, FAILED_PRECONDITION in one line.
#ifndef RANKPROBE_COLLECTOR_RPC_LOCAL_READER_H_
#define RANKPROBE_COLLECTOR_RPC_LOCAL_READER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/io/file_system.h"
#include "common/rpc/grpc_channel.h"

namespace rankprobe {

class LocalReader {
 public:
  virtual ~LocalReader() = default;
  // `url` is s3://.., or the absolute path of a directory.
  static absl::StatusOr<std::unique_ptr<LocalReader>> Open(
      const std::string& url, FileSystem* file_system, const Clock* clock);
  virtual std::shared_ptr<grpc::Channel> channel(Interceptors interceptors) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_RPC_LOCAL_READER_H_
