// SPDX-License-Identifier: Apache-2.0
// Documents made from the table of config.json's fields (config_fields.h): the
// JSON schema that editors check a file by, and the tables of docs/config.md.
// Pure functions.
#ifndef RANKPROBE_COMMON_CONFIG_CONFIG_SCHEMA_H_
#define RANKPROBE_COMMON_CONFIG_CONFIG_SCHEMA_H_

#include <string>

namespace rankprobe {

// JSON schema, draft 7, indented. An unknown key is a fault by it.
std::string ConfigJsonSchema();

// A heading and a table of Markdown for each object of config.json.
std::string ConfigMarkdown();

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_CONFIG_CONFIG_SCHEMA_H_
