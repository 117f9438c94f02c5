// SPDX-License-Identifier: Apache-2.0
// Builder of graphs for dumps below the root and runs of the archive, which
// have no database. Each becomes a database in an unnamed file, which is
// deleted when it is no longer among the last eight or when the process ends.
// Graphs are built one at a time. Thread-safe.
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

// The dump of a run; the destructor releases it.
class FetchedDump {
 public:
  virtual ~FetchedDump() = default;
  // A directory outside the root.
  virtual const std::string& path() const = 0;
};
// Fetches "run:NAME" or "run:NAME@STEP", with the bytes of tensors if
// `payloads`. Blocks; returns CANCELLED once `cancelled` returns true.
using FetchRun = std::function<absl::StatusOr<std::unique_ptr<FetchedDump>>(
    const std::string& name, bool payloads, std::function<bool()> cancelled)>;

class GraphBuilder {
 public:
  // `root` may be null and `fetch` empty if there is no such source.
  GraphBuilder(const GraphRoot* root, FetchRun fetch)
      : root_(root), fetch_(std::move(fetch)) {}

  struct Built {
    std::string name;  // "@3"
    std::string json;  // {"db", "nodes", "warnings"}
  };
  // Builds a graph. Blocks; returns CANCELLED once `gone` is set. `progress` is
  // called with the number of finished parts and of all parts. A database that
  // was built from the same sources is reused unless `again` is set.
  absl::StatusOr<Built> Build(
      const GraphRequest& request, bool again,
      const std::function<void(size_t, size_t)>& progress,
      const std::atomic<bool>* gone);
  // Returns NOT_FOUND if the database was deleted and must be built again.
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
  // The most recently used entry first.
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_GRAPH_GRAPH_BUILDER_H_
