// SPDX-License-Identifier: Apache-2.0
#include "common/text/json_text.h"

#include <array>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

// Bytes that JSON text contains unescaped.
constexpr std::array<bool, 256> MakePlain() {
  std::array<bool, 256> table{};
  for (size_t c = 0x20; c <= 0x7e; ++c) table[c] = c != '"' && c != '\\';
  return table;
}
constexpr std::array<bool, 256> kIsPlain = MakePlain();

bool IsPlain(char c) { return kIsPlain[static_cast<unsigned char>(c)]; }

constexpr char kHex[] = "0123456789abcdef";

void AppendUnicode(uint32_t unit, std::string* out) {
  out->append("\\u");
  for (int shift = 12; shift >= 0; shift -= 4)
    out->push_back(kHex[(unit >> shift) & 15]);
}

// Decodes one UTF-8 sequence at `i` and advances it. Ill-formed input returns
// U+FFFD for each byte that cannot be part of a sequence.
uint32_t DecodeUtf8(absl::string_view text, size_t* i) {
  const auto byte = [&](size_t k) {
    return static_cast<unsigned char>(text[k]);
  };
  const uint32_t first = byte(*i);
  int more = 0;
  uint32_t code = 0, least = 0;
  if (first < 0x80) {
    ++*i;
    return first;
  }
  if ((first & 0xe0) == 0xc0) {
    more = 1, code = first & 0x1f, least = 0x80;
  } else if ((first & 0xf0) == 0xe0) {
    more = 2, code = first & 0x0f, least = 0x800;
  } else if ((first & 0xf8) == 0xf0) {
    more = 3, code = first & 0x07, least = 0x10000;
  } else {
    ++*i;
    return 0xfffd;
  }
  for (int k = 1; k <= more; ++k) {
    if (*i + k >= text.size() || (byte(*i + k) & 0xc0) != 0x80) {
      ++*i;
      return 0xfffd;
    }
    code = (code << 6) | (byte(*i + k) & 0x3f);
  }
  if (code < least || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
    ++*i;
    return 0xfffd;
  }
  *i += 1 + more;
  return code;
}

}  // namespace

void AppendPythonFloat(double value, std::string* out) {
  if (std::isnan(value)) {
    out->append("NaN");
    return;
  }
  if (std::isinf(value)) {
    out->append(value > 0 ? "Infinity" : "-Infinity");
    return;
  }
  std::array<char, 40> buffer;
  // Shortest digits that read back as the same double: d.ddde[+-]xx.
  const auto result =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                    std::chars_format::scientific);
  absl::string_view text(buffer.data(),
                         static_cast<size_t>(result.ptr - buffer.data()));
  if (text.front() == '-') {
    out->push_back('-');
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1),
                  text.data() + text.size(), exponent);
  // Removes the point from the digits.
  if (e > 2)
    buffer[static_cast<size_t>(text.data() - buffer.data()) + 1] = text[0];
  const absl::string_view digits =
      e > 2 ? text.substr(1, e - 1) : text.substr(0, 1);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out->push_back(digits[0]);
    if (count > 1) absl::StrAppend(out, ".", digits.substr(1));
    absl::StrAppend(out, "e", exponent < 0 ? "-" : "+",
                    std::abs(exponent) < 10 ? "0" : "", std::abs(exponent));
  } else if (exponent < 0) {
    out->append("0.");
    out->append(static_cast<size_t>(-exponent - 1), '0');
    out->append(digits.data(), digits.size());
  } else if (exponent + 1 >= count) {
    out->append(digits.data(), digits.size());
    out->append(static_cast<size_t>(exponent + 1 - count), '0');
    out->append(".0");
  } else {
    absl::StrAppend(out, digits.substr(0, static_cast<size_t>(exponent) + 1),
                    ".", digits.substr(static_cast<size_t>(exponent) + 1));
  }
}

std::string JsonString(absl::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

void AppendJsonString(absl::string_view text, std::string* out) {
  out->push_back('"');
  for (size_t i = 0; i < text.size();) {
    if (IsPlain(text[i])) {
      size_t end = i + 1;
      while (end < text.size() && IsPlain(text[end])) ++end;
      out->append(text.data() + i, end - i);
      i = end;
      continue;
    }
    const uint32_t code = DecodeUtf8(text, &i);
    switch (code) {
      case '"':
        out->append("\\\"");
        break;
      case '\\':
        out->append("\\\\");
        break;
      case '\n':
        out->append("\\n");
        break;
      case '\r':
        out->append("\\r");
        break;
      case '\t':
        out->append("\\t");
        break;
      case '\b':
        out->append("\\b");
        break;
      case '\f':
        out->append("\\f");
        break;
      default:
        if (code >= 0x10000) {
          AppendUnicode(0xd800 + ((code - 0x10000) >> 10), out);
          AppendUnicode(0xdc00 + ((code - 0x10000) & 0x3ff), out);
        } else {
          AppendUnicode(code, out);
        }
    }
  }
  out->push_back('"');
}

void JsonTextWriter::NewLine() {
  out_->push_back('\n');
  out_->append(has_element_.size(), ' ');
}

void JsonTextWriter::BeforeValue() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (has_element_.empty()) return;
  if (has_element_.back()) out_->push_back(',');
  has_element_.back() = true;
  NewLine();
}

void JsonTextWriter::Begin(char bracket) {
  BeforeValue();
  out_->push_back(bracket);
  has_element_.push_back(false);
}

void JsonTextWriter::End(char bracket) {
  const bool filled = has_element_.back();
  has_element_.pop_back();
  if (filled) NewLine();
  out_->push_back(bracket);
}

void JsonTextWriter::Key(absl::string_view name) {
  if (has_element_.back()) out_->push_back(',');
  has_element_.back() = true;
  NewLine();
  AppendJsonString(name, out_);
  out_->append(": ");
  after_key_ = true;
}

void JsonTextWriter::Int(int64_t value) {
  BeforeValue();
  absl::StrAppend(out_, value);
}

void JsonTextWriter::Uint(uint64_t value) {
  BeforeValue();
  absl::StrAppend(out_, value);
}

void JsonTextWriter::Float(double value) {
  BeforeValue();
  AppendPythonFloat(value, out_);
}

void JsonTextWriter::String(absl::string_view value) {
  BeforeValue();
  AppendJsonString(value, out_);
}

void JsonTextWriter::Raw(absl::string_view text) {
  BeforeValue();
  out_->append(text.data(), text.size());
}

}  // namespace rankprobe
