// SPDX-License-Identifier: Apache-2.0
// Builder of graphs for dumps below the root and runs of the archive, which
// have no database. Each becomes a database in a file without a name, which is
// removed when it is no longer among the last eight or when the process ends.
// Graphs are built one at a time.
// Thread-safe.
#ifndef RANKPROBE_WEB_GRAPH_GRAPH_BUILDER_H_
#define RANKPROBE_WEB_GRAPH_GRAPH_BUILDER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "web/graph/graph_requests.h"
#include "web/graph/graph_root.h"

namespace rankprobe {

// The dump of a run while it is needed.
class FetchedDump {
 public:
  virtual ~FetchedDump() = default;
  // A directory outside the root.
  virtual const std::string& path() const = 0;
};
// Of "run:NAME" or "run:NAME@STEP", with the bytes of tensors if `payloads`.
// Blocks, until `cancelled`: CANCELLED.
using FetchRun = std::function<absl::StatusOr<std::unique_ptr<FetchedDump>>(
    const std::string& name, bool payloads, std::function<bool()> cancelled)>;

class GraphBuilder {
 public:
  // `root` may be null, `fetch` empty: there is no such source then.
  GraphBuilder(const GraphRoot* root, FetchRun fetch)
      : root_(root), fetch_(std::move(fetch)) {}

  struct Built {
    std::string name;  // "@3"
    std::string json;  // {"db", "nodes", "warnings"}
  };
  // Blocks; CANCELLED when `gone` is set. `progress` gets parts done and in
  // all. A database that was built from the same sources is reused unless
  // `again`.
  absl::StatusOr<Built> Build(
      const GraphRequest& request, bool again,
      const std::function<void(size_t, size_t)>& progress,
      const std::atomic<bool>* gone);
  // NOT_FOUND: it was removed; build it again.
  absl::StatusOr<std::shared_ptr<const Descriptor>> Find(
      absl::string_view name) const;

 private:
  struct Entry {
    std::string key;
    Built built;
    std::shared_ptr<const Descriptor> file;
  };

  absl::StatusOr<Entry> Make(
      const GraphRequest& request,
      const std::function<void(size_t, size_t)>& progress,
      const std::atomic<bool>* gone);

  const GraphRoot* const root_;
  const FetchRun fetch_;
  absl::Mutex building_ ABSL_ACQUIRED_BEFORE(mutex_);
  mutable absl::Mutex mutex_;
  int64_t number_ ABSL_GUARDED_BY(mutex_) = 0;
  // The last one used first.
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_GRAPH_GRAPH_BUILDER_H_
