// SPDX-License-Identifier: Apache-2.0
// One request of a server, cut out of recorded steps: which steps it was in,
// and its rows of the recorded tensors. Functions of the archive; any thread.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_REQUEST_CUT_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_REQUEST_CUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/store/archive_reader.h"
#include "dump_format/step_view.h"

namespace rankprobe {

// Returns the id that equals `wanted`; else the one that a server derived from
// it; else the one that contains it. NOT_FOUND if there is none,
// INVALID_ARGUMENT if there are several; both name some existing ids. `ids` are
// in order of arrival.
absl::StatusOr<std::string> ChooseRequest(const std::vector<std::string>& ids,
                                          absl::string_view wanted);

// Keeps those of `steps` that have rows of the request `wanted`, and returns
// its id. Reads the records of each step. NOT_FOUND and INVALID_ARGUMENT as
// ChooseRequest.
absl::StatusOr<std::string> KeepStepsOfRequest(
    ArchiveReader* store, const std::string& run, absl::string_view wanted,
    std::vector<v1::StepInfo>* steps);

struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t size() const { return end - begin; }
};

// Returns the part of `data` inside the range; `at` is the offset of `data` in
// its payload.
absl::string_view PartWithin(absl::string_view data, uint64_t at,
                             const ByteRange& range);

struct RequestCut {
  // The remaining bytes of the payloads of cut tensors. The keys are in the
  // view.
  absl::flat_hash_map<const v1::TensorSummary*, ByteRange> bytes;
  // Nothing was cut although other requests were in the batch: statistics cover
  // all rows (task statistics), or starts of the step had other batches.
  bool whole_batch = false;
  // In a step that was cut: tensors with rows whose bytes are missing.
  uint64_t whole_tensors = 0;
};

// Cuts dim 0 of each tensor of `view` that has as many rows as the batch, as
// the agent would have done: shape, statistics, checksum. Afterwards `recorded`
// of the step's requests is `id`, even if the request was alone. A tensor that
// cannot be read is not cut. Holds one cut tensor in memory.
RequestCut CutToRequest(ArchiveReader* store, const std::string& run,
                        const std::string& id, StepView* view);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_REQUEST_CUT_H_
