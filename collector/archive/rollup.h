// SPDX-License-Identifier: Apache-2.0
// Rolls up the steps of the archive: the statistics of a step's values, in the
// order and by the names in which the records have them, as columns that a
// question over many steps can read (docs/storage.md, "Rollups").
// Ownership: one per Store, which outlives it. Threads: one at a time; ingest
// and reading go on. Failure: what cannot be rolled up is set aside, and
// questions about it are answered from the records.
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

// Ids of what calls were given; below are those of what they made.
inline constexpr uint32_t kFirstGivenValue = uint32_t{1} << 26;

// What a call was given, as against what it made.
bool IsGiven(CallSection section);

// A value of the step.
void AddToSummary(bool given, const v1::TensorSummary& tensor,
                  StepSummary* summary);

class RollupMaker {
 public:
  explicit RollupMaker(Store* store) : store_(store) {}

  struct Report {
    uint64_t steps = 0;
    uint64_t aside = 0;
    // Of the last one that was set aside.
    absl::Status why;
  };
  // All that waits, until `cancelled` or nothing waits any more.
  Report RollUpPending(absl::FunctionRef<bool()> cancelled);
  absl::Status RollUp(const PendingRollup& step);

 private:
  // Of a run, as stored; loaded once.
  struct Dictionary {
    absl::flat_hash_map<std::string, uint32_t> ids;
    // By what is in it.
    absl::flat_hash_map<std::string, uint32_t> layouts;
    uint32_t next_made = 0;
    uint32_t next_given = kFirstGivenValue;
    uint32_t next_layout = 0;
    // The values of the step that was rolled up last, in its order, and their
    // names (entry, value) one after another: comparing them with those of the
    // next step reads memory in order.
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
