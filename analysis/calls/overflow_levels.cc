// SPDX-License-Identifier: Apache-2.0
#include "analysis/calls/overflow_levels.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/calls/unwritten_tensors.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {
namespace {

bool IsAbnormal(const JsonValue& value) {
  if (value.is_array()) {
    return std::any_of(value.items().begin(), value.items().end(), IsAbnormal);
  }
  if (!value.is_object()) return false;
  const JsonValue* const type = value.Find("type");
  if (type == nullptr || !type->is_string()) {
    return std::any_of(value.fields().begin(), value.fields().end(),
                       [](const JsonMember& m) { return IsAbnormal(m.value); });
  }
  for (const Stat stat : {kMax, kMin, kMean}) {
    const JsonValue* const found = value.Find(kStatInfo[stat].key);
    if (found != nullptr && IsNanOrInf(*found)) return true;
  }
  return false;
}

struct Side {
  std::vector<std::string> abnormal;  // index or keyword
  std::optional<double> max_norm;     // unset: an unknown norm
  bool any = false;
};

void AddItem(const JsonValue& item, std::string place, Side* side,
             std::vector<double>* norms, bool* unknown) {
  if (IsAbnormal(item)) side->abnormal.push_back(std::move(place));
  const JsonValue* const type = item.Find("type");
  if (type == nullptr || type->text != "torch.Tensor") return;
  const JsonValue* const norm = item.Find(kStatInfo[kNorm].key);
  if (norm == nullptr || !norm->is_number() || std::isnan(norm->number)) {
    *unknown = true;
    return;
  }
  norms->push_back(norm->number);
}

// Reads one side without the places that may be uninitialised.
Side ReadSide(const JsonValue& record,
              std::initializer_list<absl::string_view> sections,
              absl::FunctionRef<bool(absl::string_view)> is_unwritten) {
  Side side;
  std::vector<double> norms;
  bool unknown = false;
  for (const absl::string_view section : sections) {
    const JsonValue* const value = record.Find(section);
    if (value == nullptr) continue;
    size_t index = 0;
    for (const JsonValue& item : value->items()) {
      std::string place = absl::StrCat(index++);
      if (!is_unwritten(place))
        AddItem(item, std::move(place), &side, &norms, &unknown);
    }
    for (const JsonMember& member : value->fields()) {
      if (!is_unwritten(member.key)) {
        AddItem(member.value, std::string(member.key), &side, &norms, &unknown);
      }
    }
  }
  side.any = !norms.empty();
  if (!norms.empty()) {
    side.max_norm = *std::max_element(norms.begin(), norms.end());
  }
  return side;
}

// msprobe's rule: the tensor that masked_fill_ is called on may contain the
// values that the call masks.
bool IsMaskedOut(absl::string_view entry, const Side& in) {
  return absl::StartsWithIgnoreCase(entry, "Tensor.masked_fill_.") &&
         in.abnormal == std::vector<std::string>{"0"};
}

}  // namespace

bool IsNanOrInf(const JsonValue& value) {
  if (value.is_number()) return !std::isfinite(value.number);
  if (!value.is_string()) return false;
  const std::string text = absl::AsciiStrToLower(value.text);
  return text == "nan" || text == "inf" || text == "-inf";
}

absl::string_view OverflowLevel(absl::string_view entry,
                                const JsonValue& record,
                                const TensorNotes& notes) {
  if (!record.is_object()) return "";
  const UnwrittenTensors unwritten(entry, &notes);
  const Side in = ReadSide(
      record, {"input_args", "input", "input_kwargs"},
      [&](absl::string_view place) { return unwritten.HasInput(place); });
  const Side out = ReadSide(record, {"output"}, [&](absl::string_view place) {
    return unwritten.HasOutput(place);
  });
  const bool bad_in = !in.abnormal.empty();
  const bool bad_out = !out.abnormal.empty();
  absl::string_view level;
  if (!bad_in && bad_out) {
    level = "critical";
  } else if (bad_in && bad_out) {
    level = "high";
  } else if (bad_in) {
    level = "medium";
  } else if (in.any && out.any) {
    const double before = *in.max_norm;
    const double after = *out.max_norm;
    if (before == 0 ? after > 100 : after / before > 100) level = "high";
  }
  if (level.empty() || IsMaskedOut(entry, in)) return "";
  return level;
}

}  // namespace rankprobe::analysis
