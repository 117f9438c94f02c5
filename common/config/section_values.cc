// SPDX-License-Identifier: Apache-2.0
#include "common/config/section_values.h"

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "re2/re2.h"

namespace rankprobe {
namespace {

// RE2 is linear in time and bounded in memory, which matters because configs
// are not trusted. Look-around and back references are legal for MindSpore,
// unknown to RE2, and therefore accepted without a check.
bool IsRegularExpression(absl::string_view pattern) {
  RE2::Options options;
  options.set_log_errors(false);
  constexpr int64_t kMaxMemory = 1 << 16;
  options.set_max_mem(kMaxMemory);
  const RE2 compiled(re2::StringPiece(pattern.data(), pattern.size()), options);
  switch (compiled.error_code()) {
    case RE2::NoError:
    case RE2::ErrorPatternTooLarge:
    case RE2::ErrorBadPerlOp:
      return true;
    case RE2::ErrorBadEscape:
      return compiled.error_arg().size() == 2 &&
             absl::ascii_isdigit(
                 static_cast<unsigned char>(compiled.error_arg()[1]));
    default:
      return false;
  }
}

}  // namespace

bool HasNamePatterns(ConfigReader* reader, const char* name,
                     absl::Span<const std::string> items) {
  constexpr absl::string_view kBegin = "name-regex(";
  constexpr size_t kShown = 120;
  constexpr size_t kMaxPatternBytes = 1024;
  constexpr size_t kMaxPatterns = 64;
  bool any = false;
  absl::flat_hash_set<absl::string_view> checked;
  for (const std::string& item : items) {
    absl::string_view pattern = item;
    if (!absl::ConsumePrefix(&pattern, kBegin)) continue;
    any = true;
    const bool closed = absl::ConsumeSuffix(&pattern, ")");
    if (pattern.size() > kMaxPatternBytes) {
      reader->Fault(name, item.substr(0, kShown),
                    absl::StrCat("a regular expression of at most ",
                                 kMaxPatternBytes, " bytes"));
    } else if (!closed || (checked.size() < kMaxPatterns &&
                           checked.insert(pattern).second &&
                           !IsRegularExpression(pattern))) {
      reader->Fault(name, item.substr(0, kShown), "a regular expression");
    }
  }
  return any;
}

void ParseDataMode(ConfigReader* reader, DataMode* mode) {
  const std::vector<std::string> modes = reader->StringList("data_mode");
  if (modes.empty()) return;
  constexpr absl::string_view kLegal =
      "at most four of all, forward, backward, input, output, with all alone";
  if (modes.size() > 4)
    return reader->Fault("data_mode", absl::StrJoin(modes, ","), kLegal);
  bool all = false, forward = false, backward = false, input = false,
       output = false;
  for (const std::string& word : modes) {
    if (word == "all") {
      all = true;
    } else if (word == "forward") {
      forward = true;
    } else if (word == "backward") {
      backward = true;
    } else if (word == "input") {
      input = true;
    } else if (word == "output") {
      output = true;
    } else {
      return reader->Fault("data_mode", absl::StrCat("\"", word, "\""), kLegal);
    }
  }
  if (all) {
    if (modes.size() > 1)
      reader->Fault("data_mode", absl::StrJoin(modes, ","), kLegal);
    return;
  }
  const bool no_direction = !forward && !backward, no_io = !input && !output;
  mode->forward = forward || no_direction;
  mode->backward = backward || no_direction;
  mode->input = input || no_io;
  mode->output = output || no_io;
  mode->parameters_grad = !(forward && !backward);
}

void ParseSlices(ConfigReader* reader, ConfigFaults* faults,
                 std::vector<SliceSpec>* slices) {
  const rapidjson::Value* given = reader->Get("slice");
  if (given == nullptr) return;
  constexpr absl::string_view kLegal =
      "a list of {dim, begin, end[, size]} with integers";
  if (!given->IsArray())
    return reader->Fault("slice", JsonText(*given), kLegal);
  for (const rapidjson::Value& item : given->GetArray()) {
    if (!item.IsObject()) {
      reader->Fault("slice", JsonText(item), kLegal);
      continue;
    }
    ConfigReader one(&item, reader->FieldName("slice") + ".", faults,
                     kSliceItem);
    SliceSpec slice;
    const auto dim = one.Int("dim"), begin = one.Int("begin"),
               end = one.Int("end");
    slice.size = one.Int("size");
    for (const char* needed : {"dim", "begin", "end"}) {
      if (!one.Has(needed)) one.Fault(needed, "absent", "an integer");
    }
    if (!dim || !begin || !end) continue;
    slice.dim = *dim;
    slice.begin = *begin;
    slice.end = *end;
    slices->push_back(slice);
  }
}

}  // namespace rankprobe
