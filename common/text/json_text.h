// SPDX-License-Identifier: Apache-2.0
// JSON text exactly as Python's json.dump(obj, indent=1) writes it: one space a
// level, ASCII only, floats as repr() prints them, NaN and Infinity as bare
// words. The dump layout's readers depend on these bytes.
// Not thread-safe. Misuse (a value without a key) is a programming error.
#ifndef RANKPROBE_COMMON_TEXT_JSON_TEXT_H_
#define RANKPROBE_COMMON_TEXT_JSON_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace rankprobe {

// Appends repr(value) of Python to `out`.
void AppendPythonFloat(double value, std::string* out);
// Appends a quoted string; invalid UTF-8 becomes \ufffd.
void AppendJsonString(absl::string_view text, std::string* out);
std::string JsonString(absl::string_view text);

inline bool IsJsonSpace(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

class JsonTextWriter {
 public:
  // Appends to `out`, which must outlive the writer; the caller may drain it
  // between calls.
  explicit JsonTextWriter(std::string* out) : out_(out) {}

  void BeginObject() { Begin('{'); }
  void EndObject() { End('}'); }
  void BeginArray() { Begin('['); }
  void EndArray() { End(']'); }
  void Key(absl::string_view name);
  void Null() { Raw("null"); }
  void Bool(bool value) { Raw(value ? "true" : "false"); }
  void Int(int64_t value);
  void Uint(uint64_t value);
  void Float(double value);
  void String(absl::string_view value);
  // Appends text that is already JSON and has no line breaks, such as a big
  // integer.
  void Raw(absl::string_view text);

 private:
  void Begin(char bracket);
  void End(char bracket);
  void BeforeValue();
  void NewLine();

  std::string* const out_;
  // For each open container, whether it has an element yet.
  std::vector<bool> has_element_;
  bool after_key_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TEXT_JSON_TEXT_H_
