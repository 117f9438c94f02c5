// SPDX-License-Identifier: Apache-2.0
// One commit while it is built: its writes, and what restores the store's
// tables if it is not written. Plain value; lives inside StoreWriter::Commit,
// under the store's mutex.
#ifndef RANKPROBE_COLLECTOR_STORE_COMMIT_WORK_H_
#define RANKPROBE_COLLECTOR_STORE_COMMIT_WORK_H_

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "collector/store/index.h"
#include "collector/store/order_set.h"
#include "collector/store/partials.h"
#include "collector/store/payload_store.h"

namespace rankprobe {

using RunIncarnation = std::pair<uint32_t, uint64_t>;

// One process' step, with the numbers that are used in keys.
struct StepId {
  uint32_t run = 0;
  int64_t step = 0;
  uint64_t incarnation = 0;

  auto operator<=>(const StepId&) const = default;
};

struct CommitWork {
  int64_t now_unix_ns = 0;
  std::unique_ptr<IndexBatch> batch;
  std::vector<ChunkToAppend> chunks;
  // Row key of each entry in `chunks`; empty if no row is to point at it.
  std::vector<std::string> chunk_keys;
  // Segments that this index has not named yet.
  std::set<uint64_t> new_segments;
  std::set<RunIncarnation> incarnations;
  std::set<StepId> steps;
  // Rows of the runs before this commit, by name. They are kept because the
  // index may not be readable when the commit is undone.
  std::map<std::string, v1::RunRow> runs;
  // Orders of the records in the batch; the index does not have them yet.
  std::map<StepId, OrderSet> orders;
  std::map<std::string, std::optional<Partial>> partials_before;
  std::vector<std::string> whole_added;
  // Index rows that the batch deletes.
  absl::flat_hash_set<std::string> dropped;
  // Number of lost records by LossReason.
  std::map<int, uint64_t> lost_records;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_COMMIT_WORK_H_
