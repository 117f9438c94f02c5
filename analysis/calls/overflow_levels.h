// SPDX-License-Identifier: Apache-2.0
// Overflow level of one call: NaN, infinities and jumps of the norm. The rules:
// docs/analysis.md, "Overflow levels". Pure functions.
#ifndef RANKPROBE_ANALYSIS_CALLS_OVERFLOW_LEVELS_H_
#define RANKPROBE_ANALYSIS_CALLS_OVERFLOW_LEVELS_H_

#include "absl/strings/string_view.h"
#include "dump_format/json_value.h"
#include "dump_format/tensor_notes.h"

namespace rankprobe::analysis {

// Returns "medium", "high" or "critical", or an empty text for a normal call.
// `notes` are those of the call's dump.
absl::string_view OverflowLevel(absl::string_view entry,
                                const JsonValue& record,
                                const TensorNotes& notes);

// Whether the value is NaN or an infinity, as a number or as text.
bool IsNanOrInf(const JsonValue& value);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_CALLS_OVERFLOW_LEVELS_H_
