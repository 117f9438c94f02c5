// SPDX-License-Identifier: Apache-2.0
// Documents made from the table of config.json's fields (config_fields.h): the
// JSON schema that editors check a file by, and the tables of docs/config.md.
// Pure functions.
#ifndef RANKPROBE_COMMON_CONFIG_CONFIG_SCHEMA_H_
#define RANKPROBE_COMMON_CONFIG_CONFIG_SCHEMA_H_

#include <string>

namespace rankprobe {

// Returns an indented JSON schema, draft 7. It rejects unknown keys.
std::string ConfigJsonSchema();

// Returns a heading and a Markdown table for each object of config.json.
std::string ConfigMarkdown();

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_CONFIG_CONFIG_SCHEMA_H_
