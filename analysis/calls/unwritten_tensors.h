// SPDX-License-Identifier: Apache-2.0
// Tensors of a call in a dump that may be uninitialised, by the name of the
// call (common/records/unwritten.h) and by its operator's schema, if that was
// recorded (tensor_notes.json). Their values are whatever was in that memory
// before, so neither a NaN nor a difference in them is evidence. Plain values.
#ifndef RANKPROBE_ANALYSIS_CALLS_UNWRITTEN_TENSORS_H_
#define RANKPROBE_ANALYSIS_CALLS_UNWRITTEN_TENSORS_H_

#include "absl/strings/string_view.h"
#include "common/records/unwritten.h"
#include "dump_format/dump_rows.h"
#include "dump_format/tensor_notes.h"

namespace rankprobe::analysis {

class UnwrittenTensors {
 public:
  // `entry` and `notes` outlive this object.
  UnwrittenTensors(absl::string_view entry, const TensorNotes* notes);

  // Places are "0" for the first positional tensor and "out" for the keyword of
  // that name.
  bool HasInput(absl::string_view place) const;
  bool HasOutput(absl::string_view place) const;
  // Whether the row is, or is part of, a tensor that may be uninitialised.
  bool Has(const DumpRow& row) const;

 private:
  const absl::string_view entry_;
  const TensorNotes* const notes_;
  const UnwrittenPlaces places_;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_CALLS_UNWRITTEN_TENSORS_H_
