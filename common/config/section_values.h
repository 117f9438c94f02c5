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

// As it is where the field is not there.
void ParseDataMode(ConfigReader* reader, DataMode* mode);

// `faults`: the reader's.
void ParseSlices(ConfigReader* reader, ConfigFaults* faults,
                 std::vector<SliceSpec>* slices);

// Whether one of `items`, the values of `name`, is a pattern; one that is no
// regular expression is a fault. A compilation takes its time, also of the
// collector's: what comes after the first few is taken as it is.
bool HasNamePatterns(ConfigReader* reader, const char* name,
                     absl::Span<const std::string> items);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_CONFIG_SECTION_VALUES_H_
