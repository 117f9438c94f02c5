// SPDX-License-Identifier: Apache-2.0
// Every field of config.json: its type, legal values, default, an example and
// what it means. The parser reads words, bounds and known keys here;
// docs/config.md and the JSON schema are made of it (config_schema.h). Constant
// data, for any thread.
#ifndef RANKPROBE_COMMON_CONFIG_CONFIG_FIELDS_H_
#define RANKPROBE_COMMON_CONFIG_CONFIG_FIELDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace rankprobe {

// The objects of config.json. Bits, because a field may be in several.
enum ConfigSection : unsigned {
  kNoSection = 0,
  kTop = 1,
  kStatisticsSection = 2,
  kTensorSection = 4,
  kStructureSection = 8,
  kMonitorSection = 16,
  // An item of "slice".
  kSliceItem = 32,
};

enum class ConfigType {
  kSwitch,   // true or false
  kWord,     // one of `words`
  kWords,    // a list of `words`
  kText,     // a string
  kTexts,    // a list of strings
  kInteger,  // min .. max
  kRanges,   // a list of integers and "a-b"
  kObject,   // a section
  kObjects,  // a list of objects: slices
  kAny,      // of other tools: not looked at
};

struct ConfigField {
  const char* name;
  unsigned sections;
  ConfigType type;
  // JSON text; "" if the default is not a value.
  const char* fallback;
  const char* example;
  // Markdown.
  const char* meaning;
  absl::Span<const char* const> words = {};
  int64_t min = 0;
  int64_t max = 0;
};

// Returns all fields in the order in which they are documented.
absl::Span<const ConfigField> ConfigFields();

// Returns null if the section has no such field.
const ConfigField* FindConfigField(ConfigSection section,
                                   absl::string_view name);

std::vector<std::string> ConfigFieldNames(ConfigSection section);

// "statistics"; "" for kTop.
absl::string_view ConfigSectionName(ConfigSection section);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_CONFIG_CONFIG_FIELDS_H_
