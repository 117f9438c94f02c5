// SPDX-License-Identifier: Apache-2.0
// Tensors of a call that may be uninitialised: memory that the call is about to
// overwrite, or that it has allocated and not written. Its contents are old
// data, possibly a NaN, and not a fault of the program.
// Pure functions.
#ifndef RANKPROBE_COMMON_RECORDS_UNWRITTEN_H_
#define RANKPROBE_COMMON_RECORDS_UNWRITTEN_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/records/call_values.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// Positions as in dump.json: "0" is the first positional argument or output,
// "tensor" the keyword argument of that name.
struct UnwrittenPlaces {
  absl::Span<const absl::string_view> inputs;
  absl::Span<const absl::string_view> outputs;

  bool HasInput(absl::string_view place) const;
  bool HasOutput(absl::string_view place) const;
};

// Places for a full entry name, "Tensor.bernoulli_.0.forward". A keyword
// argument `out` is among the inputs of every API call.
UnwrittenPlaces UnwrittenPlacesOf(absl::string_view entry);

// Whether the call passes its input on as a view or a copy of the same values,
// for example "Tensor.narrow.3.forward" and its backward. A bad value in it was
// bad before, and may be uninitialized memory.
bool MovesValuesOnly(absl::string_view entry);

// Whether `tensor`, at `place` of the phase, is one of UnwrittenPlacesOf, or an
// argument that its operator's schema declares as written.
bool IsUnwritten(const UnwrittenPlaces& places, const v1::CallPhase& phase,
                 TensorPlace place, const v1::TensorSummary& tensor);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RECORDS_UNWRITTEN_H_
