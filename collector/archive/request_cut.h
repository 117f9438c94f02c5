// SPDX-License-Identifier: Apache-2.0
// One request of a server out of recorded steps: which steps it was in, and its
// rows of what is recorded there. Functions of the archive; any thread.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_REQUEST_CUT_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_REQUEST_CUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/store/archive_reader.h"
#include "dump_format/step_view.h"

namespace rankprobe {

// The id that `wanted` is; else the one that a server made of it; else the one
// that has it in it. NOT_FOUND: none; INVALID_ARGUMENT: several; both name some
// of those there are. `ids`: in the order of their coming.
absl::StatusOr<std::string> ChooseRequest(const std::vector<std::string>& ids,
                                          absl::string_view wanted);

// Leaves of `steps` those with rows of the request that `wanted` is, whose id is
// returned. Reads the records of each step. NOT_FOUND and INVALID_ARGUMENT as
// ChooseRequest.
absl::StatusOr<std::string> KeepStepsOfRequest(
    ArchiveReader* store, const std::string& run, absl::string_view wanted,
    std::vector<v1::StepInfo>* steps);

struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t size() const { return end - begin; }
};

// What of `data`, which is at `at` of its payload, is in the range.
absl::string_view PartWithin(absl::string_view data, uint64_t at,
                             const ByteRange& range);

struct RequestCut {
  // What is left of the payloads of cut tensors. The keys are in the view.
  absl::flat_hash_map<const v1::TensorSummary*, ByteRange> bytes;
  // Nothing was cut although others were in the batch: statistics are those of
  // all rows (task statistics), or starts of the step had other batches.
  bool whole_batch = false;
  // In a step that was cut: tensors with rows whose bytes are not there.
  uint64_t whole_tensors = 0;
};

// Cuts dim 0 of each tensor of `view` that has as many rows as the batch, as the
// agent would have done: shape, statistics, checksum. `recorded` of the step's
// requests is then `id`, also where the request was alone. A tensor that cannot
// be read stays whole. Holds one cut tensor in memory.
RequestCut CutToRequest(ArchiveReader* store, const std::string& run,
                        const std::string& id, StepView* view);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_REQUEST_CUT_H_
