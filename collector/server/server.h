// SPDX-License-Identifier: Apache-2.0
// The complete collector: store, control plane, ingest and the gRPC server over
// them, in the order they must start and stop. Threads: Start and Shutdown from
// one thread.
#ifndef RANKPROBE_COLLECTOR_SERVER_SERVER_H_
#define RANKPROBE_COLLECTOR_SERVER_SERVER_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/object_store/object_store.h"
#include "collector/rpc/leaf_questions.h"
#include "collector/server/server_config.h"
#include "collector/store/store.h"
#include "common/base/logger.h"

namespace rankprobe {

// The archive that a server reads, and its writers. Everything except `local`
// outlives the server.
struct ServedArchive {
  ServedArchive(ArchiveReader* archive, ArchiveUpkeep* maintenance,
                RunRegistry* runs)
      : reader(archive), upkeep(maintenance), registry(runs) {}
  explicit ServedArchive(std::unique_ptr<Store> store)
      : reader(store.get()),
        upkeep(store.get()),
        registry(store.get()),
        local(std::move(store)) {}

  ArchiveReader* reader;
  ArchiveUpkeep* upkeep;
  // Null: the server admits no ranks and switches no plans.
  RunRegistry* registry;
  // Null: the server takes no frames; the archive is in an object store.
  std::unique_ptr<Store> local;
};

class Server {
 public:
  virtual ~Server() = default;

  // UNAVAILABLE if an address cannot be bound. `objects` is used by a leaf to
  // store ended steps; outlives the server. `questions` is used by a root's
  // archive to ask leaves; outlives the server.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerConfig& config, ServedArchive archive,
      FileSystem* file_system, const Clock* clock, const Logger* logger,
      ObjectStore* objects = nullptr, LeafQuestions* questions = nullptr);

  // 0 if it listens on a Unix socket.
  virtual int port() const = 0;
  // Where it listens, with the port that was taken.
  virtual const std::string& address() const = 0;
  // Address of the page for browsers; empty if there is none.
  virtual std::string page_address() const = 0;

  // Says goodbye to agents, takes no more calls, writes and syncs what was
  // received. Returns false if a call lasts beyond the time for draining: end
  // the process then without destroying the server, which would wait for it.
  virtual bool Shutdown() = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_SERVER_H_
