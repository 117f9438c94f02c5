// SPDX-License-Identifier: Apache-2.0
// The archive of all runs: a LevelDB index and append-only payload segments
// under one data directory (docs/storage.md, "On disk").
//
// Ownership: one Store per data directory per machine; it holds the directory's
// lock until destroyed. The Clock and FileSystem outlive it.
// Threads: all methods are thread-safe. Failure: a failed write makes the store
// read-only (sticky): every later Commit and Sync returns the first error until
// the store is reopened.
#ifndef RANKPROBE_COLLECTOR_STORE_STORE_H_
#define RANKPROBE_COLLECTOR_STORE_STORE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/store/recovery.h"
#include "collector/store/series_reader.h"
#include "collector/store/series_writer.h"
#include "collector/store/store_core.h"
#include "collector/store/store_reader.h"
#include "collector/store/store_registry.h"
#include "collector/store/store_upkeep.h"
#include "collector/store/store_writer.h"
#include "common/base/clock.h"
#include "common/io/file_system.h"

namespace rankprobe {

// All roles of an archive in one directory, each a separate class over one
// StoreCore. A client that needs one role uses that class or its interface, not
// this one.
class Store final : public StoreReader,
                    public StoreWriter,
                    public StoreRegistry,
                    public SeriesReader,
                    public SeriesWriter,
                    public StoreUpkeep {
 public:
  // Opens an archive, or creates one in an empty directory.
  // FAILED_PRECONDITION: another process holds the lock (its name is in the
  // message), or the schema is unknown. DATA_LOSS: the index is corrupt, or is
  // missing although there are segments.
  static absl::StatusOr<std::unique_ptr<Store>> Open(
      const StoreOptions& options, FileSystem* file_system, const Clock* clock);
  ~Store() override {
    if (is_open_) Close();
  }

  RecoveryReport recovery() const { return recovery_; }

 private:
  explicit Store(std::unique_ptr<StoreCore> core)
      : StoreReader(core.get()),
        StoreWriter(core.get()),
        StoreRegistry(core.get()),
        SeriesReader(core.get(), this),
        SeriesWriter(core.get()),
        StoreUpkeep(core.get(), this, this),
        core_(std::move(core)) {}
  // `clean`: the last process closed the archive.
  absl::Status Recover(bool clean);

  // The destructors of the base classes do not use it.
  const std::unique_ptr<StoreCore> core_;
  RecoveryReport recovery_;
  // If false, the archive must not be marked as closed cleanly, because
  // recovery may not have finished.
  bool is_open_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_STORE_H_
