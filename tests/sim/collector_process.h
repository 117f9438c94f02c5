// SPDX-License-Identifier: Apache-2.0
// One life of a collector: the parts that server.cc puts together for ranks
// (store, control plane, commit queue, agent service, disk pressure, ticker, and of
// a leaf the sealer), on a simulated machine. What server.cc has around them (listening, TLS, pages,
// metrics, janitor) is not here.
//
// Ownership: disk, clock and scheduler outlive it. Made and destroyed on a
// fiber, once no stream of it is under way. Not thread-safe.
#ifndef RANKPROBE_TESTS_SIM_COLLECTOR_PROCESS_H_
#define RANKPROBE_TESTS_SIM_COLLECTOR_PROCESS_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "collector/control/control_plane.h"
#include "collector/control/event_log.h"
#include "collector/ingest/commit_queue.h"
#include "collector/ingest/disk_pressure.h"
#include "collector/rpc/agent_service.h"
#include "collector/rpc/worker_pool.h"
#include "collector/sealed/sealer.h"
#include "collector/store/store.h"
#include "common/base/clock.h"
#include "common/base/monotonic_event.h"
#include "common/base/service_thread.h"
#include "tests/sim/bucket.h"
#include "tests/sim/mortal_file_system.h"

namespace rankprobe::sim {

class CollectorProcess {
 public:
  struct Options {
    // Small ones make credit, pressure and batches matter.
    uint64_t credit_bytes = 256 << 10;
    uint64_t batch_bytes = 64 << 10;
    uint64_t pending_bytes = 2 << 20;
    uint64_t sync_bytes = 512 << 10;
    bool compress = false;
    bool watch_disk = true;
    // A leaf: what has ended goes there and is freed here.
    bool leaf = false;
    // A fault that is planted: it frees what it has not stored yet.
    bool frees_early = false;
  };
  // `failed`: the store has; the process is to be ended.
  // `bucket` is used by a leaf alone.
  static absl::StatusOr<std::unique_ptr<CollectorProcess>> Start(
      const Options& options, FileSystem* disk, MortalBucket bucket,
      const Clock* clock, std::function<void()> failed);
  ~CollectorProcess();

  // From now on it does nothing any more that others could notice, but for
  // streams, which the network cuts.
  void Kill();
  // The same instead of its `count`th write from now; then `killed` is called.
  void KillAtWrite(uint64_t count, std::function<void()> killed);
  // As on SIGTERM: ranks are told, and what was received is written.
  void SayGoodbye();

  bool alive() const { return alive_; }
  AgentService* agents() { return agents_.get(); }
  ControlPlane* control() { return control_.get(); }
  Store* store() { return store_.get(); }
  // Null: it is not a leaf.
  Sealer* sealer() { return sealer_.get(); }
  CommitQueue* commits() { return commits_.get(); }

 private:
  CollectorProcess(FileSystem* disk, MortalBucket bucket,
                   std::function<void()> failed)
      : files_(disk), bucket_(bucket), failed_(std::move(failed)) {}
  absl::Status OpenSealer(const Clock* clock);
  void Tick();
  void Seal();
  void FreeEarly();

  MortalFileSystem files_;
  MortalBucket bucket_;
  bool frees_early_ = false;
  const std::function<void()> failed_;
  bool alive_ = true;
  std::unique_ptr<EventLog> events_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<DiskPressure> pressure_;
  std::unique_ptr<CommitQueue> commits_;
  // One thread: of two the second would wait for a lock of the first.
  std::unique_ptr<WorkerPool> pool_;
  std::unique_ptr<AgentService> agents_;
  std::unique_ptr<Sealer> sealer_;
  MonotonicEvent stop_;
  ServiceThread ticker_, sealing_;
};

}  // namespace rankprobe::sim

#endif  // RANKPROBE_TESTS_SIM_COLLECTOR_PROCESS_H_
