// SPDX-License-Identifier: Apache-2.0
#include "dump_format/json_value.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/charconv.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/text/json_text.h"

namespace rankprobe {
namespace {

void AppendUtf8(uint32_t code, std::string* out) {
  if (code < 0x80) {
    out->push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (code >> 6)));
    out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else if (code < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (code >> 12)));
    out->push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | (code >> 18)));
    out->push_back(static_cast<char>(0x80 | ((code >> 12) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
}

}  // namespace

class JsonParser {
 public:
  explicit JsonParser(JsonDocument* document)
      : document_(document),
        begin_(document->view_.data()),
        at_(begin_),
        end_(begin_ + document->view_.size()) {}

  absl::Status Run() {
    absl::Status status = Value(0, &document_->root_);
    if (!status.ok()) return status;
    SkipSpace();
    if (at_ != end_) return Fault("text after the value");
    return absl::OkStatus();
  }

 private:
  absl::Status Fault(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("invalid JSON at byte ", at_ - begin_, ": ", what));
  }
  void SkipSpace() {
    while (at_ != end_ && IsJsonSpace(*at_)) ++at_;
  }
  bool Word(absl::string_view word) {
    if (static_cast<size_t>(end_ - at_) < word.size() ||
        std::memcmp(at_, word.data(), word.size()) != 0) {
      return false;
    }
    at_ += word.size();
    return true;
  }

  absl::Status Value(size_t depth, JsonValue* out) {
    if (depth > kMaxJsonDepth) return Fault("nested too deep");
    SkipSpace();
    if (at_ == end_) return Fault("unexpected end");
    *out = JsonValue();
    const char* const start = at_;
    switch (*at_) {
      case '{':
        return Object(depth, out);
      case '[':
        return Array(depth, out);
      case '"':
        out->kind = JsonValue::Kind::kString;
        return String(&out->text);
      case 'n':
        if (!Word("null")) break;
        return absl::OkStatus();
      case 't':
        if (!Word("true")) break;
        out->kind = JsonValue::Kind::kTrue;
        out->number = 1;
        return absl::OkStatus();
      case 'f':
        if (!Word("false")) break;
        out->kind = JsonValue::Kind::kFalse;
        return absl::OkStatus();
      case 'N':
        if (!Word("NaN")) break;
        return Special(start, std::numeric_limits<double>::quiet_NaN(), out);
      case 'I':
        if (!Word("Infinity")) break;
        return Special(start, std::numeric_limits<double>::infinity(), out);
      default:
        return Number(out);
    }
    return Fault("unknown word");
  }

  absl::Status Special(const char* start, double number, JsonValue* out) {
    out->kind = JsonValue::Kind::kFloat;
    out->number = number;
    out->text = absl::string_view(start, static_cast<size_t>(at_ - start));
    return absl::OkStatus();
  }

  absl::Status Number(JsonValue* out) {
    const char* const start = at_;
    if (*at_ == '-') {
      ++at_;
      if (at_ != end_ && *at_ == 'I') {
        if (!Word("Infinity")) return Fault("unknown word");
        return Special(start, -std::numeric_limits<double>::infinity(), out);
      }
    }
    const char* const digits = at_;
    while (at_ != end_ && *at_ >= '0' && *at_ <= '9') ++at_;
    if (at_ == digits) return Fault("expected a value");
    bool integer = true;
    if (at_ != end_ && *at_ == '.') {
      integer = false;
      ++at_;
      const char* const fraction = at_;
      while (at_ != end_ && *at_ >= '0' && *at_ <= '9') ++at_;
      if (at_ == fraction) return Fault("bad number");
    }
    if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
      integer = false;
      ++at_;
      if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      const char* const exponent = at_;
      while (at_ != end_ && *at_ >= '0' && *at_ <= '9') ++at_;
      if (at_ == exponent) return Fault("bad number");
    }
    out->kind = integer ? JsonValue::Kind::kInt : JsonValue::Kind::kFloat;
    out->text = absl::string_view(start, static_cast<size_t>(at_ - start));
    if (std::from_chars(start, at_, out->number).ec != std::errc()) {
      // A number out of range becomes infinity or zero, as in Python.
      absl::from_chars(start, at_, out->number);
    }
    return absl::OkStatus();
  }

  absl::Status String(absl::string_view* out) {
    const char* const start = ++at_;
    while (at_ != end_ && *at_ != '"' && *at_ != '\\') ++at_;
    if (at_ == end_) return Fault("unterminated string");
    if (*at_ == '"') {
      *out = absl::string_view(start, static_cast<size_t>(at_ - start));
      ++at_;
      return absl::OkStatus();
    }
    scratch_.assign(start, static_cast<size_t>(at_ - start));
    while (true) {
      if (at_ == end_) return Fault("unterminated string");
      if (*at_ == '"') break;
      if (*at_ != '\\') {
        scratch_.push_back(*at_++);
        continue;
      }
      ++at_;
      if (at_ == end_) return Fault("unterminated string");
      absl::Status status = Escape();
      if (!status.ok()) return status;
    }
    ++at_;
    *out = document_->Keep(scratch_);
    return absl::OkStatus();
  }

  absl::Status Escape() {
    switch (*at_++) {
      case '"':
        scratch_.push_back('"');
        return absl::OkStatus();
      case '\\':
        scratch_.push_back('\\');
        return absl::OkStatus();
      case '/':
        scratch_.push_back('/');
        return absl::OkStatus();
      case 'b':
        scratch_.push_back('\b');
        return absl::OkStatus();
      case 'f':
        scratch_.push_back('\f');
        return absl::OkStatus();
      case 'n':
        scratch_.push_back('\n');
        return absl::OkStatus();
      case 'r':
        scratch_.push_back('\r');
        return absl::OkStatus();
      case 't':
        scratch_.push_back('\t');
        return absl::OkStatus();
      case 'u':
        break;
      default:
        return Fault("bad escape");
    }
    uint32_t code = 0;
    if (!Hex(&code)) return Fault("bad escape");
    if (code >= 0xD800 && code < 0xE000) {
      uint32_t low = 0;
      if (code < 0xDC00 && end_ - at_ >= 6 && at_[0] == '\\' && at_[1] == 'u') {
        const char* const back = at_;
        at_ += 2;
        if (!Hex(&low)) return Fault("bad escape");
        if (low >= 0xDC00 && low < 0xE000) {
          AppendUtf8(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00),
                     &scratch_);
          return absl::OkStatus();
        }
        at_ = back;
      }
      code = 0xFFFD;  // half a pair has no UTF-8
    }
    AppendUtf8(code, &scratch_);
    return absl::OkStatus();
  }

  bool Hex(uint32_t* code) {
    if (end_ - at_ < 4) return false;
    const auto result = std::from_chars(at_, at_ + 4, *code, 16);
    if (result.ec != std::errc() || result.ptr != at_ + 4) return false;
    at_ += 4;
    return true;
  }

  absl::Status Array(size_t depth, JsonValue* out) {
    ++at_;
    auto& stack = document_->value_stack_;
    const size_t base = stack.size();
    SkipSpace();
    if (at_ != end_ && *at_ == ']') {
      ++at_;
    } else {
      while (true) {
        JsonValue value;
        absl::Status status = Value(depth + 1, &value);
        if (!status.ok()) return status;
        stack.push_back(value);
        SkipSpace();
        if (at_ == end_) return Fault("unexpected end");
        const char c = *at_;
        if (c != ',' && c != ']') return Fault("expected , or ]");
        ++at_;
        if (c == ']') break;
      }
    }
    out->kind = JsonValue::Kind::kArray;
    out->size = static_cast<uint32_t>(stack.size() - base);
    out->elements = Store(&stack, base);
    return absl::OkStatus();
  }

  absl::Status Object(size_t depth, JsonValue* out) {
    ++at_;
    auto& stack = document_->member_stack_;
    const size_t base = stack.size();
    SkipSpace();
    if (at_ != end_ && *at_ == '}') {
      ++at_;
    } else {
      while (true) {
        JsonMember member;
        SkipSpace();
        if (at_ == end_ || *at_ != '"') return Fault("expected a key");
        absl::Status status = String(&member.key);
        if (!status.ok()) return status;
        SkipSpace();
        if (at_ == end_ || *at_ != ':') return Fault("expected :");
        ++at_;
        status = Value(depth + 1, &member.value);
        if (!status.ok()) return status;
        stack.push_back(member);
        SkipSpace();
        if (at_ == end_) return Fault("unexpected end");
        const char c = *at_;
        if (c != ',' && c != '}') return Fault("expected , or }");
        ++at_;
        if (c == '}') break;
      }
    }
    out->kind = JsonValue::Kind::kObject;
    out->size = static_cast<uint32_t>(stack.size() - base);
    out->members = Store(&stack, base);
    return absl::OkStatus();
  }

  template <typename T>
  const T* Store(std::vector<T>* stack, size_t base) {
    const size_t count = stack->size() - base;
    if (count == 0) return nullptr;
    T* const stored = static_cast<T*>(
        document_->arena_.allocate(count * sizeof(T), alignof(T)));
    std::uninitialized_copy(stack->begin() + static_cast<ptrdiff_t>(base),
                            stack->end(), stored);
    stack->resize(base);
    return stored;
  }

  JsonDocument* const document_;
  const char* const begin_;
  const char* at_;
  const char* const end_;
  std::string scratch_;
};

const JsonValue* JsonValue::Find(absl::string_view key) const {
  const absl::Span<const JsonMember> all = fields();
  for (size_t i = all.size(); i > 0; --i) {
    if (all[i - 1].key == key) return &all[i - 1].value;
  }
  return nullptr;
}

absl::Status JsonDocument::Parse(std::string text) {
  text_ = std::move(text);
  return ParseView(text_);
}

absl::Status JsonDocument::ParseView(absl::string_view text) {
  root_ = JsonValue();
  arena_.release();
  value_stack_.clear();
  member_stack_.clear();
  view_ = text;
  absl::Status status = JsonParser(this).Run();
  if (!status.ok()) root_ = JsonValue();
  return status;
}

absl::string_view JsonDocument::Keep(absl::string_view text) {
  if (text.empty()) return {};
  char* const copy = static_cast<char*>(arena_.allocate(text.size(), 1));
  std::memcpy(copy, text.data(), text.size());
  return {copy, text.size()};
}

void AppendPythonQuoted(absl::string_view text, std::string* out) {
  const char quote =
      absl::StrContains(text, '\'') && !absl::StrContains(text, '"') ? '"'
                                                                     : '\'';
  out->push_back(quote);
  for (const char c : text) {
    if (c == quote || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c == '\r') {
      out->append("\\r");
    } else if (c == '\t') {
      out->append("\\t");
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      constexpr char kHex[] = "0123456789abcdef";
      out->append("\\x");
      out->push_back(kHex[static_cast<unsigned char>(c) >> 4]);
      out->push_back(kHex[c & 15]);
    } else {
      out->push_back(c);
    }
  }
  out->push_back(quote);
}

namespace {

void AppendRepr(const JsonValue& value, std::string* out) {
  if (value.is_string()) {
    AppendPythonQuoted(value.text, out);
  } else {
    AppendPythonText(value, out);
  }
}

}  // namespace

void WriteJson(const JsonValue& value, JsonTextWriter* json) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      json->Null();
      return;
    case JsonValue::Kind::kFalse:
    case JsonValue::Kind::kTrue:
      json->Bool(value.kind == JsonValue::Kind::kTrue);
      return;
    case JsonValue::Kind::kInt:
    case JsonValue::Kind::kFloat:
      json->Raw(value.text);
      return;
    case JsonValue::Kind::kString:
      json->String(value.text);
      return;
    case JsonValue::Kind::kArray:
      json->BeginArray();
      for (const JsonValue& item : value.items()) WriteJson(item, json);
      json->EndArray();
      return;
    case JsonValue::Kind::kObject:
      json->BeginObject();
      for (const JsonMember& member : value.fields()) {
        json->Key(member.key);
        WriteJson(member.value, json);
      }
      json->EndObject();
      return;
  }
}

void AppendPythonText(const JsonValue& value, std::string* out) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      out->append("None");
      return;
    case JsonValue::Kind::kFalse:
      out->append("False");
      return;
    case JsonValue::Kind::kTrue:
      out->append("True");
      return;
    case JsonValue::Kind::kInt:
      absl::StrAppend(out, value.text == "-0" ? "0" : value.text);
      return;
    case JsonValue::Kind::kFloat:
      if (std::isnan(value.number)) {
        out->append("nan");
      } else if (std::isinf(value.number)) {
        out->append(value.number > 0 ? "inf" : "-inf");
      } else {
        AppendPythonFloat(value.number, out);
      }
      return;
    case JsonValue::Kind::kString:
      absl::StrAppend(out, value.text);
      return;
    case JsonValue::Kind::kArray: {
      out->push_back('[');
      bool first = true;
      for (const JsonValue& item : value.items()) {
        if (!first) out->append(", ");
        first = false;
        AppendRepr(item, out);
      }
      out->push_back(']');
      return;
    }
    case JsonValue::Kind::kObject: {
      out->push_back('{');
      bool first = true;
      for (const JsonMember& member : value.fields()) {
        if (!first) out->append(", ");
        first = false;
        AppendPythonQuoted(member.key, out);
        out->append(": ");
        AppendRepr(member.value, out);
      }
      out->push_back('}');
      return;
    }
  }
}

std::string PythonText(const JsonValue& value) {
  std::string out;
  AppendPythonText(value, &out);
  return out;
}

std::string OneLine(absl::string_view text) {
  constexpr size_t kLongest = 1000;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      out.push_back(c);
      continue;
    }
    out.append("\\x");
    out.push_back(kHex[byte >> 4]);
    out.push_back(kHex[byte & 15]);
  }
  if (text.size() > kLongest) out.append("..");
  return out;
}

}  // namespace rankprobe
