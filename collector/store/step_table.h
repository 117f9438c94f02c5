// SPDX-License-Identifier: Apache-2.0
// Rows of the steps that are written to, with some that have ended, and which
// orders of records they have: each order of a step is stored once.
// Threads: none of its own; the store's mutex guards it. A pointer to a row is
// good until the row is erased. Failure: the index's errors.
#ifndef RANKPROBE_COLLECTOR_STORE_STEP_TABLE_H_
#define RANKPROBE_COLLECTOR_STORE_STEP_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/store/commit_work.h"
#include "collector/store/index.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/store.pb.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

class StepTable {
 public:
  explicit StepTable(Index* index) : index_(index) {}

  // A new one is not written here.
  absl::StatusOr<v1::StepRow*> Load(const StepId& id);
  // One that was loaded.
  const v1::StepRow& at(const StepId& id) const { return steps_.at(id); }
  // The records of a frame. INVALID_ARGUMENT: one does not match its checksum.
  absl::Status AddBatch(v1::RunRow* run, uint64_t incarnation,
                        const v1::UploadFrame& frame, CommitWork* work);
  void Erase(const StepId& id) { steps_.erase(id); }
  void EraseRun(uint32_t run);
  void Undo(const CommitWork& work) {
    for (const StepId& id : work.steps) steps_.erase(id);
  }
  // Where there are many, forgets those that have ended: what comes of them
  // later finds their rows in the index.
  void Trim();

 private:
  // Whether the step has a record of this order; if not, it is taken from here
  // on. `next_order`: its entry of next_orders_.
  absl::StatusOr<bool> IsThere(const StepId& id, uint64_t order,
                               uint64_t* next_order, CommitWork* work);
  absl::Status AddRecord(v1::RunRow* run, const StepId& id,
                         const v1::Record& record, v1::StepRow* step,
                         CommitWork* work);

  static constexpr size_t kUsual = 4096;

  Index* const index_;
  std::map<StepId, v1::StepRow> steps_;
  size_t trim_at_ = kUsual;
  // Above all orders of the step that are stored, added ones aside. One that is
  // too high, as after a commit that failed, costs questions to the index.
  std::map<StepId, uint64_t> next_orders_;
  // The bytes of the record that is being added; keeps its memory.
  std::string encoded_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_STEP_TABLE_H_
