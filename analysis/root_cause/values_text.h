// SPDX-License-Identifier: Apache-2.0
// A row of a dump as one line of text. Pure functions.
#ifndef RANKPROBE_ANALYSIS_ROOT_CAUSE_VALUES_TEXT_H_
#define RANKPROBE_ANALYSIS_ROOT_CAUSE_VALUES_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "dump_format/dump_rows.h"

namespace rankprobe::analysis {

// Returns a text such as "Max=1.0 Min=0.0 .. dtype=torch.float32 shape=[4]", or
// the value if it is not a tensor.
std::string ValuesText(const DumpRow& row);

// Returns the place of a row of this entry: "input.0", "output.1.0".
absl::string_view PlaceOf(absl::string_view entry, const DumpRow& row);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_VALUES_TEXT_H_
