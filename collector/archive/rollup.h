// SPDX-License-Identifier: Apache-2.0
// Rollups of the archive's steps: the statistics of a step's values, in the
// order and with the names of the records, as columns for queries over many
// steps (docs/storage.md, "Rollups").
// Ownership: one per Store, which outlives it. Threads: one at a time; ingest
// and reading continue. Failure: a step that cannot be rolled up is set aside,
// and queries read its records.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_ROLLUP_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_ROLLUP_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/store/step_summary.h"
#include "collector/store/store.h"
#include "common/records/call_values.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// First id of inputs of calls; ids of outputs are below.
inline constexpr uint32_t kFirstGivenValue = uint32_t{1} << 26;

// Returns true for inputs of a call, false for its outputs.
bool IsGiven(CallSection section);

// Adds a value of the step to its summary.
void AddToSummary(bool given, const v1::TensorSummary& tensor,
                  StepSummary* summary);

class RollupMaker {
 public:
  explicit RollupMaker(Store* store) : store_(store) {}

  struct Report {
    uint64_t steps = 0;
    uint64_t aside = 0;
    // Error of the last step that was set aside.
    absl::Status why;
  };
  // Rolls up all waiting steps, until `cancelled` or none is left.
  Report RollUpPending(absl::FunctionRef<bool()> cancelled);
  absl::Status RollUp(const PendingRollup& step);

 private:
  // The stored names and layouts of a run; loaded once.
  struct Dictionary {
    absl::flat_hash_map<std::string, uint32_t> ids;
    // Layout numbers by encoded layout.
    absl::flat_hash_map<std::string, uint32_t> layouts;
    uint32_t next_made = 0;
    uint32_t next_given = kFirstGivenValue;
    uint32_t next_layout = 0;
    // The values of the last rolled-up step, in its order, and their names
    // (entry, value) back to back: comparing them with those of the next step
    // reads memory in order.
    struct Value {
      bool given;
      uint32_t id;
      size_t entry_bytes, value_bytes;
    };
    std::vector<Value> last_step;
    std::string last_names;
  };
  class IdsOfStep;
  absl::StatusOr<Dictionary*> Load(uint32_t run);

  Store* const store_;
  std::map<uint32_t, Dictionary> dictionaries_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_ROLLUP_H_
