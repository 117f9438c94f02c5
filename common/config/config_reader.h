// SPDX-License-Identifier: Apache-2.0
// Typed access to one JSON object of a config file that collects every fault
// instead of stopping at the first. Not thread-safe; used on one stack.
#ifndef RANKPROBE_COMMON_CONFIG_CONFIG_READER_H_
#define RANKPROBE_COMMON_CONFIG_CONFIG_READER_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/config/plan.h"
#include "rapidjson/document.h"

namespace rankprobe {

// Faults of one config: each line names field, value and what is legal.
class ConfigFaults {
 public:
  void Add(absl::string_view field, absl::string_view value,
           absl::string_view legal);
  // A line of another kind: that a file cannot be read at all.
  void AddText(absl::string_view line);
  bool empty() const { return lines_.empty(); }
  // INVALID_ARGUMENT with all lines, or OK.
  absl::Status ToStatus() const;

 private:
  std::vector<std::string> lines_;
};

// A value as compact JSON text, at most 120 bytes.
std::string JsonText(const rapidjson::Value& value);

// Parses a whole document: an object, at most 1 MiB, at most 64 levels deep.
absl::Status ParseConfigDocument(absl::string_view json,
                                 rapidjson::Document* document);

class ConfigReader {
 public:
  // `prefix` is put before field names ("statistics."). `object` and `faults`
  // outlive the reader.
  ConfigReader(const rapidjson::Value* object, std::string prefix,
               ConfigFaults* faults);

  bool Has(const char* name);
  // The member, or null when absent; marks it as known.
  const rapidjson::Value* Get(const char* name);

  std::optional<bool> Bool(const char* name);
  std::optional<std::string> String(const char* name);
  std::optional<int64_t> Int(const char* name, int64_t min, int64_t max);
  // One of `legal`; fault otherwise. Returns its index.
  std::optional<size_t> OneOf(const char* name,
                              absl::Span<const char* const> legal);
  std::vector<std::string> StringList(const char* name);
  // [1, "3", "4-6"]: members of 0 .. 1,000,000. At most 100,000 items.
  IntSet Ranges(const char* name);

  // Members nobody asked for.
  std::vector<std::string> UnknownNames() const;
  void Fault(const char* name, absl::string_view value,
             absl::string_view legal);
  std::string FieldName(const char* name) const { return prefix_ + name; }

 private:
  const rapidjson::Value* const object_;
  const std::string prefix_;
  ConfigFaults* const faults_;
  std::set<std::string> known_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_CONFIG_CONFIG_READER_H_
