// SPDX-License-Identifier: Apache-2.0
// JSON as a dump holds it: NaN and Infinity as bare words, integers of any
// length, ASCII or UTF-8 text. A parsed tree lives in its document; strings
// without escapes point into the parsed text. Plain values, one thread at a
// time. Input is not trusted: depth and size are bounded by the text.
#ifndef RANKPROBE_DUMP_FORMAT_JSON_VALUE_H_
#define RANKPROBE_DUMP_FORMAT_JSON_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace rankprobe {

class JsonTextWriter;

// Deeper texts are refused.
inline constexpr size_t kMaxJsonDepth = 512;

struct JsonMember;

struct JsonValue {
  enum class Kind : uint8_t {
    kNull,
    kFalse,
    kTrue,
    kInt,
    kFloat,
    kString,
    kArray,
    kObject,
  };

  bool is_null() const { return kind == Kind::kNull; }
  bool is_bool() const { return kind == Kind::kTrue || kind == Kind::kFalse; }
  bool is_number() const { return kind == Kind::kInt || kind == Kind::kFloat; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_array() const { return kind == Kind::kArray; }
  bool is_object() const { return kind == Kind::kObject; }
  absl::Span<const JsonValue> items() const {
    return is_array() ? absl::MakeConstSpan(elements, size)
                      : absl::Span<const JsonValue>();
  }
  inline absl::Span<const JsonMember> fields() const;
  // Null when absent or not an object; the last of equal keys.
  const JsonValue* Find(absl::string_view key) const;

  Kind kind = Kind::kNull;
  uint32_t size = 0;
  double number = 0;
  absl::string_view text;  // of a number: the token; of a string: its content
  union {
    const JsonValue* elements = nullptr;
    const JsonMember* members;
  };
};

struct JsonMember {
  absl::string_view key;
  JsonValue value;
};

absl::Span<const JsonMember> JsonValue::fields() const {
  return is_object() ? absl::MakeConstSpan(members, size)
                     : absl::Span<const JsonMember>();
}

class JsonDocument {
 public:
  JsonDocument() = default;
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  // INVALID_ARGUMENT with the byte offset of the fault. Frees the tree parsed
  // before. The text is kept.
  absl::Status Parse(std::string text);
  // The same of a text that outlives the tree.
  absl::Status ParseView(absl::string_view text);
  const JsonValue& root() const { return root_; }
  // Room for derived text that lives as long as the tree.
  absl::string_view Keep(absl::string_view text);

 private:
  friend class JsonParser;
  std::string text_;
  absl::string_view view_;
  std::pmr::monotonic_buffer_resource arena_;
  JsonValue root_;
  // Scratch of the parser, kept for its capacity.
  std::vector<JsonValue> value_stack_;
  std::vector<JsonMember> member_stack_;
};

// As it stands in a file: numbers keep their text.
void WriteJson(const JsonValue& value, JsonTextWriter* json);

// str(value) of Python.
void AppendPythonText(const JsonValue& value, std::string* out);
std::string PythonText(const JsonValue& value);
// repr(text) of Python for a str.
void AppendPythonQuoted(absl::string_view text, std::string* out);

// Text of a file for a message of one line: control characters are escaped, a
// long text is cut.
std::string OneLine(absl::string_view text);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_JSON_VALUE_H_
