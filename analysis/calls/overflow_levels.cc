#include "analysis/calls/overflow_levels.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/records/unwritten.h"
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

// msprobe's own table of places whose content does not matter. Narrower than
// UnwrittenPlacesOf, which is asked first, but for masked_fill_.
struct Harmless {
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
};

const Harmless* FindHarmless(const std::string& op) {
  static const auto* const kTable =
      new absl::flat_hash_map<std::string, Harmless>{
          {"torch.empty", {{}, {"0"}}},
          {"torch.empty_like", {{}, {"0"}}},
          {"torch.empty_strided", {{}, {"0"}}},
          {"distributed.recv", {{"0", "tensor"}, {}}},
          {"distributed.all_gather", {{"0"}, {}}},
          {"distributed._reduce_scatter_base", {{"0"}, {}}},
          {"distributed.all_gather_into_tensor", {{"0"}, {}}},
          {"distributed.reduce_scatter_tensor", {{"0"}, {}}},
          {"distributed.reduce_scatter", {{"0", "output"}, {}}},
          {"tensor.masked_fill_", {{"0"}, {}}},
      };
  const auto it = kTable->find(op);
  return it == kTable->end() ? nullptr : &it->second;
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

// Without the places whose content is nobody's.
Side ReadSide(const JsonValue& record,
              std::initializer_list<absl::string_view> sections,
              absl::Span<const absl::string_view> unwritten) {
  const auto counts = [&](absl::string_view place) {
    return std::find(unwritten.begin(), unwritten.end(), place) ==
           unwritten.end();
  };
  Side side;
  std::vector<double> norms;
  bool unknown = false;
  for (const absl::string_view section : sections) {
    const JsonValue* const value = record.Find(section);
    if (value == nullptr) continue;
    size_t index = 0;
    for (const JsonValue& item : value->items()) {
      std::string place = absl::StrCat(index++);
      if (counts(place))
        AddItem(item, std::move(place), &side, &norms, &unknown);
    }
    for (const JsonMember& member : value->fields()) {
      if (counts(member.key)) {
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

bool AllListed(const std::vector<std::string>& places,
               const std::vector<std::string>& listed) {
  return std::all_of(places.begin(), places.end(), [&](const std::string& p) {
    return std::find(listed.begin(), listed.end(), p) != listed.end();
  });
}

bool IsHarmless(absl::string_view entry, const Side& in, const Side& out) {
  const size_t first = entry.find('.');
  if (first == absl::string_view::npos) return false;
  const size_t second = entry.find('.', first + 1);
  const Harmless* const harmless =
      FindHarmless(absl::AsciiStrToLower(entry.substr(0, second)));
  if (harmless == nullptr) return false;
  bool seen = false;
  if (!harmless->inputs.empty()) {
    if (!AllListed(in.abnormal, harmless->inputs)) return false;
    seen = seen || !in.abnormal.empty();
  }
  if (!harmless->outputs.empty()) {
    if (!AllListed(out.abnormal, harmless->outputs)) return false;
    seen = seen || !out.abnormal.empty();
  }
  return seen;
}

}  // namespace

bool IsNanOrInf(const JsonValue& value) {
  if (value.is_number()) return !std::isfinite(value.number);
  if (!value.is_string()) return false;
  const std::string text = absl::AsciiStrToLower(value.text);
  return text == "nan" || text == "inf" || text == "-inf";
}

absl::string_view OverflowLevel(absl::string_view entry,
                                const JsonValue& record) {
  if (!record.is_object()) return "";
  const UnwrittenPlaces unwritten = UnwrittenPlacesOf(entry);
  const Side in = ReadSide(record, {"input_args", "input", "input_kwargs"},
                           unwritten.inputs);
  const Side out = ReadSide(record, {"output"}, unwritten.outputs);
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
  if (level.empty() || IsHarmless(entry, in, out)) return "";
  return level;
}

}  // namespace rankprobe::analysis
