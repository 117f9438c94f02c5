// SPDX-License-Identifier: Apache-2.0
// JSON as in a dump: NaN and Infinity as bare words, integers of any length,
// ASCII or UTF-8 text. A parsed tree is owned by its document; strings without
// escapes point into the parsed text. Plain values, one thread at a time. Input
// is not trusted: depth and size are bounded by the text.
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

// Texts with deeper nesting are refused.
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
  // Returns the last member with this key; null if there is none, or if the
  // value is not an object.
  const JsonValue* Find(absl::string_view key) const;

  Kind kind = Kind::kNull;
  uint32_t size = 0;
  double number = 0;
  absl::string_view text;  // number: the token; string: its content
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

  // Parses a text, which is kept, and frees the previous tree. INVALID_ARGUMENT
  // has the byte offset of the fault.
  absl::Status Parse(std::string text);
  // The same for a text that outlives the tree.
  absl::Status ParseView(absl::string_view text);
  const JsonValue& root() const { return root_; }
  // Stores derived text as long as the tree.
  absl::string_view Keep(absl::string_view text);

 private:
  friend class JsonParser;
  std::string text_;
  absl::string_view view_;
  std::pmr::monotonic_buffer_resource arena_;
  JsonValue root_;
  // Scratch memory of the parser, kept for its capacity.
  std::vector<JsonValue> value_stack_;
  std::vector<JsonMember> member_stack_;
};

// Writes the value as in a file: numbers keep their text.
void WriteJson(const JsonValue& value, JsonTextWriter* json);

// Appends str(value) of Python.
void AppendPythonText(const JsonValue& value, std::string* out);
std::string PythonText(const JsonValue& value);
// Appends repr(text) of Python for a str.
void AppendPythonQuoted(absl::string_view text, std::string* out);

// Formats text of a file for a message of one line: control characters are
// escaped, and a long text is cut.
std::string OneLine(absl::string_view text);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_JSON_VALUE_H_
