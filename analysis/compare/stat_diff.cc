// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/stat_diff.h"

#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/text/json_text.h"

namespace rankprobe::analysis {
namespace {

enum class ValueType {
  kNumber,
  kNan,
  kInf,
  kNegInf,
  kDevice,
  kMissing,
  kOther
};

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string out;
  AppendPythonFloat(value, &out);
  return out;
}

struct Classified {
  ValueType type;
  double number = 0;
};

Classified ClassifyText(absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(text);
  if (lower == "nan") return {ValueType::kNan};
  if (lower == "inf") return {ValueType::kInf};
  if (lower == "-inf") return {ValueType::kNegInf};
  double number = 0;
  if (absl::SimpleAtod(text, &number) && std::isfinite(number)) {
    return {ValueType::kNumber, number};
  }
  // Searched anywhere in the text, as msprobe does: "cuda:0",
  // "device(type='npu')".
  if (absl::StrContains(lower, "npu") || absl::StrContains(lower, "cpu") ||
      absl::StrContains(lower, "cuda")) {
    return {ValueType::kDevice};
  }
  if (text == "N/A") return {ValueType::kMissing};
  return {ValueType::kOther};
}

Classified Classify(const JsonValue& value) {
  if (value.is_number()) {
    if (std::isnan(value.number)) return {ValueType::kNan};
    if (std::isinf(value.number)) {
      return {value.number > 0 ? ValueType::kInf : ValueType::kNegInf};
    }
    return {ValueType::kNumber, value.number};
  }
  if (value.is_string()) return ClassifyText(value.text);
  return {ValueType::kOther};
}

StatDiff OfKind(StatDiff::Kind kind) {
  StatDiff out;
  out.kind = kind;
  return out;
}

// Returns the word for a difference that is not a number.
absl::string_view Word(StatDiff::Kind kind) {
  switch (kind) {
    case StatDiff::Kind::kEqual:
      return "0";
    case StatDiff::Kind::kMissing:
      return "N/A";
    case StatDiff::Kind::kDifferent:
      return "Diff";
    case StatDiff::Kind::kNan:
      return "Nan";
    case StatDiff::Kind::kInfinite:
      return "inf";
    case StatDiff::Kind::kNegativeInfinite:
      return "-inf";
    case StatDiff::Kind::kNotCompared:
    case StatDiff::Kind::kNumbers:
      return "";
  }
  return "";
}

bool SameText(const JsonValue& a, const JsonValue& b) {
  if (a.is_number() && b.is_number() && a.kind == b.kind) {
    // Integers may have any length; as doubles, different ones could be equal.
    if (a.kind == JsonValue::Kind::kInt) return a.text == b.text;
    return a.number == b.number ||
           (std::isnan(a.number) && std::isnan(b.number));
  }
  return PythonText(a) == PythonText(b);
}

}  // namespace

std::string StatText(const JsonValue& value) {
  if (value.is_number() && std::isnan(value.number)) return "Nan";
  return PythonText(value);
}

StatDiff CompareStat(const JsonValue& target, const JsonValue& reference) {
  using Kind = StatDiff::Kind;
  // This comes first: two NaN are equal, and so are two equal words.
  if (SameText(target, reference)) return OfKind(Kind::kEqual);
  const Classified n = Classify(target);
  const Classified b = Classify(reference);
  const auto any = [&](ValueType type) {
    return n.type == type || b.type == type;
  };
  if (n.type == ValueType::kNumber && b.type == ValueType::kNumber) {
    StatDiff out = OfKind(Kind::kNumbers);
    out.difference = n.number - b.number;
    if (b.number != 0) {
      out.percent = std::fabs(out.difference / b.number * 100);
    }
    return out;
  }
  // The order follows the rule in docs/analysis.md, "Metrics": a word and NaN
  // give "Diff", NaN and an infinity give "Nan".
  if (any(ValueType::kMissing)) return OfKind(Kind::kMissing);
  // Two runs are expected to use different devices, so this is not a finding.
  if (n.type == ValueType::kDevice && b.type == ValueType::kDevice) {
    return OfKind(Kind::kMissing);
  }
  if (any(ValueType::kDevice) || any(ValueType::kOther)) {
    return OfKind(Kind::kDifferent);
  }
  if (any(ValueType::kNan)) return OfKind(Kind::kNan);
  // The sign of target - reference.
  const bool up = n.type == ValueType::kInf || (n.type != ValueType::kNegInf &&
                                                b.type == ValueType::kNegInf);
  return OfKind(up ? Kind::kInfinite : Kind::kNegativeInfinite);
}

bool StatDiff::IsZero() const {
  return kind == Kind::kEqual ||
         (kind == Kind::kNumbers && !percent.has_value() && difference == 0);
}

std::optional<double> StatDiff::Ratio() const {
  switch (kind) {
    case Kind::kEqual:
      return 0;
    case Kind::kNumbers:
      if (percent.has_value()) return *percent / 100;
      return difference == 0 ? 0 : std::numeric_limits<double>::infinity();
    case Kind::kInfinite:
    case Kind::kNegativeInfinite:
      return std::numeric_limits<double>::infinity();
    case Kind::kNotCompared:
    case Kind::kMissing:
    case Kind::kDifferent:
    case Kind::kNan:
      return std::nullopt;
  }
  return std::nullopt;
}

std::string DifferenceText(const StatDiff& diff) {
  if (diff.kind != StatDiff::Kind::kNumbers)
    return std::string(Word(diff.kind));
  return FloatText(diff.difference);
}

std::string RelativeText(const StatDiff& diff) {
  if (diff.kind != StatDiff::Kind::kNumbers)
    return std::string(Word(diff.kind));
  if (!diff.percent.has_value()) return diff.difference == 0 ? "0" : "inf";
  return absl::StrCat(FloatText(*diff.percent), "%");
}

}  // namespace rankprobe::analysis
