// SPDX-License-Identifier: Apache-2.0
// Values of a task's section of config.json that are neither a word nor a
// number: data_mode, slice, and name-regex(..) among names. Free functions of
// the parser's thread; faults go to the reader's.
#ifndef RANKPROBE_COMMON_CONFIG_SECTION_VALUES_H_
#define RANKPROBE_COMMON_CONFIG_SECTION_VALUES_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/config/config_reader.h"
#include "common/config/plan.h"

namespace rankprobe {

// Leaves `mode` unchanged if the field is absent.
void ParseDataMode(ConfigReader* reader, DataMode* mode);

// `faults` must be the reader's.
void ParseSlices(ConfigReader* reader, ConfigFaults* faults,
                 std::vector<SliceSpec>* slices);

// Whether one of `items`, the values of `name`, is a pattern; an invalid
// regular expression is a fault. Compilation takes time, also in the collector,
// so only the first few patterns are checked.
bool HasNamePatterns(ConfigReader* reader, const char* name,
                     absl::Span<const std::string> items);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_CONFIG_SECTION_VALUES_H_
