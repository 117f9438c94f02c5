// SPDX-License-Identifier: Apache-2.0
#include "analysis/merge_result/column_values.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/text/json_text.h"

namespace rankprobe::analysis {
namespace {

constexpr double kTo63 = 9223372036854775808.0;
constexpr double kTo64 = 18446744073709551616.0;
// Integers up to here are exact in a double.
constexpr double kExact = 9007199254740992.0;

bool IsDigits(absl::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    text.remove_prefix(1);
  }
  for (const char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
  }
  return !text.empty();
}

// "1", " 2.5", "1e5", "-inf", "Infinity"; not "nan".
bool ReadNumber(absl::string_view text, double* value) {
  text = absl::StripAsciiWhitespace(text);
  // Hexadecimal ones are text.
  if (text.find_first_of("xX") != absl::string_view::npos) return false;
  return absl::SimpleAtod(text, value) && !std::isnan(*value);
}

bool ReadTruth(absl::string_view text, double* value) {
  for (const absl::string_view word : {"True", "TRUE", "true"}) {
    *value = 1;
    if (text == word) return true;
  }
  for (const absl::string_view word : {"False", "FALSE", "false"}) {
    *value = 0;
    if (text == word) return true;
  }
  return false;
}

std::string FloatText(double value) {
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (std::isnan(value)) return "nan";
  std::string out;
  AppendPythonFloat(value, &out);
  return out;
}

// All digits of an integer.
std::string IntegerText(double value, absl::string_view digits) {
  if (!digits.empty()) return std::string(absl::StripPrefix(digits, "+"));
  return absl::StrFormat("%.0f", value == 0 ? 0.0 : value);
}

}  // namespace

uint32_t TextPool::Add(absl::string_view text) {
  const auto it = numbers_.find(text);
  if (it != numbers_.end()) return it->second;
  const auto number = static_cast<uint32_t>(texts_.size());
  texts_.emplace_back(text);
  numbers_.emplace(texts_.back(), number);
  return number;
}

KeptCell Keep(const TableCell& cell, TextPool* pool) {
  KeptCell kept;
  kept.kind = cell.kind;
  kept.number = cell.number;
  const bool digits = cell.kind == TableCell::Kind::kNumber &&
                      std::abs(cell.number) > kExact && IsDigits(cell.text);
  if (cell.kind == TableCell::Kind::kText || digits) {
    kept.text = pool->Add(cell.text);
  }
  return kept;
}

void ColumnType::AddInteger(double value) {
  integer_ = true;
  negative_ = negative_ || value < 0;
  wide_ = wide_ || value >= kTo63;
  beyond_ = beyond_ || value >= kTo64 || value < -kTo63;
}

void ColumnType::AddEmpty() {
  first_ = false;
  numbers_ = false;
  truths_ = false;
  bools_ = false;
}

void ColumnType::Add(const TableCell& cell) {
  using Kind = TableCell::Kind;
  if (cell.kind == Kind::kEmpty) return AddEmpty();
  if (first_) first_is_text_ = cell.kind == Kind::kText;
  first_ = false;
  double value = 0;
  if (cell.kind == Kind::kBool) return;
  bools_ = false;
  if (cell.kind == Kind::kNumber) {
    truths_ = false;
    if (cell.number == std::trunc(cell.number)) {
      AddInteger(cell.number);
    } else {
      fraction_ = true;
    }
  } else if (cell.kind == Kind::kError) {
    truths_ = false;
    fraction_ = true;
  } else if (ReadNumber(cell.text, &value)) {
    truths_ = false;
    if (IsDigits(absl::StripAsciiWhitespace(cell.text))) {
      AddInteger(value);
    } else {
      fraction_ = true;
    }
  } else {
    numbers_ = false;
    truths_ = truths_ && ReadTruth(cell.text, &value);
  }
}

ColumnType::Type ColumnType::type() const {
  if (bools_) return Type::kBool;
  if (numbers_ && !(negative_ && wide_)) {
    if (fraction_) return Type::kFloat;
    if (!beyond_) return Type::kInteger;
  }
  return truths_ && first_is_text_ ? Type::kBool : Type::kAny;
}

KeptCell ColumnType::Value(const KeptCell& cell, TextPool* pool) const {
  using Kind = TableCell::Kind;
  KeptCell value = cell;
  if (cell.kind == Kind::kError) return {};
  if (cell.kind != Kind::kText) {
    // A truth among numbers is one.
    if (cell.kind == Kind::kBool &&
        (type() == Type::kFloat || type() == Type::kInteger)) {
      value.kind = Kind::kNumber;
    }
    return value;
  }
  switch (type()) {
    case Type::kAny:
      return value;
    case Type::kBool:
      (void)ReadTruth(pool->at(cell.text), &value.number);
      value.kind = Kind::kBool;
      return value;
    case Type::kFloat:
    case Type::kInteger:
      (void)ReadNumber(pool->at(cell.text), &value.number);
      value.kind = Kind::kNumber;
      if (std::isinf(value.number)) {
        value.kind = Kind::kText;
        value.text = pool->Add(FloatText(value.number));
      }
      return value;
  }
  return value;
}

std::string ColumnType::Text(const KeptCell& cell, const TextPool& pool) const {
  using Kind = TableCell::Kind;
  const std::string& text = pool.at(cell.text);
  if (cell.kind == Kind::kError) return "nan";
  double number = cell.number;
  switch (type()) {
    case Type::kBool:
      if (cell.kind == Kind::kText) (void)ReadTruth(text, &number);
      return number == 0 ? "False" : "True";
    case Type::kFloat:
      if (cell.kind == Kind::kText) (void)ReadNumber(text, &number);
      // A number cell of minus zero is read as an integer first.
      if (cell.kind == Kind::kNumber && number == 0) number = 0;
      return FloatText(number);
    case Type::kInteger:
      if (cell.kind == Kind::kText) (void)ReadNumber(text, &number);
      return IntegerText(number, std::abs(number) > kExact ? text : "");
    case Type::kAny:
      break;
  }
  if (cell.kind == Kind::kBool) return number == 0 ? "False" : "True";
  if (cell.kind == Kind::kText) return text;
  if (cell.kind == Kind::kEmpty) return "";
  return number == std::trunc(number) ? IntegerText(number, text)
                                      : FloatText(number);
}

}  // namespace rankprobe::analysis
