// SPDX-License-Identifier: Apache-2.0
// The only walk over the values of a call phase; add every new section and
// every new kind of value here. Pure functions. Depth is bounded by the
// admission check of the wire and by the recorder.
#ifndef RANKPROBE_COMMON_RECORDS_CALL_VALUES_H_
#define RANKPROBE_COMMON_RECORDS_CALL_VALUES_H_

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

enum class CallSection {
  kInputArgs,
  kInputKwargs,
  kOutput,
  kParameters,
  kInput,
  kGradients,
  kDebug,
};

// Position of a tensor: inside the index-th value of a section.
struct TensorPlace {
  CallSection section = CallSection::kInputArgs;
  int index = 0;
};

// Visit all tensors of a phase, including nested ones, in the order above.
void ForEachTensor(v1::CallPhase* phase,
                   absl::FunctionRef<void(v1::TensorSummary*)> visit);
void ForEachTensor(const v1::CallPhase& phase,
                   absl::FunctionRef<void(const v1::TensorSummary&)> visit);
void ForEachPlacedTensor(
    const v1::CallPhase& phase,
    absl::FunctionRef<void(TensorPlace, const v1::TensorSummary&)> visit);

// Visits with the tensors' names below the entry, as in a comparison's table:
// "input.0", "input.weight" (a keyword), "output.0.1", "parameters.bias"; for a
// gradient the parameter's name, for a debug value the path in it. The name is
// valid during the call of `visit`.
void ForEachNamedTensor(const v1::CallPhase& phase,
                        absl::FunctionRef<void(TensorPlace, absl::string_view,
                                               const v1::TensorSummary&)>
                            visit);

// Visits the tensors of one value.
void ForEachTensor(const v1::Value& value,
                   absl::FunctionRef<void(const v1::TensorSummary&)> visit);

// Number of nested protobuf messages from a value down to its deepest one, not
// counting itself: kListMessages for a list, kMapMessages for a dict. For a
// phase: of its deepest value.
int NestedMessages(const v1::Value& value);
int NestedMessages(const v1::CallPhase& phase);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RECORDS_CALL_VALUES_H_
