// SPDX-License-Identifier: Apache-2.0
// Typed access to one JSON object of a config file that collects every fault
// instead of stopping at the first. The table of fields (config_fields.h)
// defines the legal values of config.json. Not thread-safe; used on one stack.
#ifndef RANKPROBE_COMMON_CONFIG_CONFIG_READER_H_
#define RANKPROBE_COMMON_CONFIG_CONFIG_READER_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/config/config_fields.h"
#include "common/config/plan.h"
#include "rapidjson/document.h"

namespace rankprobe {

// Faults of one config: each line names the field, its value and the legal
// values.
class ConfigFaults {
 public:
  struct Line {
    // "statistics.list"; empty if the line is not about a field.
    std::string field;
    std::string text;
  };

  void Add(absl::string_view field, absl::string_view value,
           absl::string_view legal);
  // Adds a line of another kind, for example that a file cannot be read at all.
  void AddText(absl::string_view line);
  bool empty() const { return lines_.empty(); }
  const std::vector<Line>& lines() const { return lines_; }
  // INVALID_ARGUMENT with all lines, or OK.
  absl::Status ToStatus() const;

 private:
  std::vector<Line> lines_;
};

// Formats a value as compact JSON text of at most 120 bytes.
std::string JsonText(const rapidjson::Value& value);

// Parses a complete document: an object, at most 1 MiB, at most 64 levels deep.
absl::Status ParseConfigDocument(absl::string_view json,
                                 rapidjson::Document* document);

class ConfigReader {
 public:
  // `prefix` is prepended to field names ("statistics."). `object` and `faults`
  // must outlive the reader. `section`: the section of config.json; kNoSection
  // for another file, whose known keys are those that the parser reads.
  ConfigReader(const rapidjson::Value* object, std::string prefix,
               ConfigFaults* faults, ConfigSection section = kNoSection);

  bool Has(const char* name);
  // Returns the member, or null if it is absent, and marks it as known.
  const rapidjson::Value* Get(const char* name);

  // Read one member: nullopt if it is absent, or has another type or is out of
  // bounds, which adds a fault.
  std::optional<bool> Bool(const char* name);
  std::optional<std::string> String(const char* name);
  std::optional<int64_t> Int(const char* name, int64_t min, int64_t max);
  // Read a field of the section: an integer within its bounds, the index of one
  // of its words.
  std::optional<int64_t> Int(const char* name);
  std::optional<size_t> OneOf(const char* name);
  std::vector<std::string> StringList(const char* name);
  // Reads [1, "3", "4-6"]: members of 0 .. 1,000,000. At most 100,000 items.
  IntSet Ranges(const char* name);

  // Members that are not fields of the section, or that the parser did not
  // read, with their prefix.
  std::vector<std::string> UnknownNames() const;
  void Fault(const char* name, absl::string_view value,
             absl::string_view legal);
  std::string FieldName(const char* name) const { return prefix_ + name; }

 private:
  const rapidjson::Value* const object_;
  const std::string prefix_;
  ConfigFaults* const faults_;
  const ConfigSection section_;
  std::set<std::string> known_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_CONFIG_CONFIG_READER_H_
