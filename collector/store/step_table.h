// SPDX-License-Identifier: Apache-2.0
// Rows of the steps being written, with some that have ended, and the orders of
// their records: each order of a step is stored once.
// Threads: none of its own; the store's mutex guards it. A pointer to a row is
// valid until the row is erased. Failure: the index's errors.
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

  // Adds a new step in memory only; the caller writes the row.
  absl::StatusOr<v1::StepRow*> Load(const StepId& id);
  // The step must be loaded.
  const v1::StepRow& at(const StepId& id) const { return steps_.at(id); }
  // Adds the records of a frame. INVALID_ARGUMENT if one does not match its
  // checksum.
  absl::Status AddBatch(v1::RunRow* run, uint64_t incarnation,
                        const v1::UploadFrame& frame, CommitWork* work);
  void Erase(const StepId& id) { steps_.erase(id); }
  void EraseRun(uint32_t run);
  void Undo(const CommitWork& work) {
    for (const StepId& id : work.steps) steps_.erase(id);
  }
  // If there are many, drops those that have ended; records that arrive later
  // load their rows from the index.
  void Trim();

 private:
  // Returns whether the step already has a record of this order; if not, the
  // order counts as used from then on. `next_order` is the step's entry of
  // next_orders_.
  absl::StatusOr<bool> IsThere(const StepId& id, uint64_t order,
                               uint64_t* next_order, CommitWork* work);
  absl::Status AddRecord(v1::RunRow* run, const StepId& id,
                         const v1::Record& record, v1::StepRow* step,
                         CommitWork* work);

  static constexpr size_t kUsual = 4096;

  Index* const index_;
  std::map<StepId, v1::StepRow> steps_;
  size_t trim_at_ = kUsual;
  // An order above all stored ones of the step, except added ones. If it is too
  // high, as after a failed commit, only more index lookups are needed.
  std::map<StepId, uint64_t> next_orders_;
  // Encoded bytes of the record being added; a member so that its memory is
  // reused.
  std::string encoded_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_STEP_TABLE_H_
