// SPDX-License-Identifier: Apache-2.0
#include "common/records/entry_names.h"

#include <xxhash.h>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxFileName = 255;

bool IsNumber(absl::string_view s) {
  return !s.empty() && absl::c_all_of(s, absl::ascii_isdigit);
}

// Splits off the text after the last '.'; the complete text if there is none.
absl::string_view PopLast(absl::string_view* s) {
  const size_t dot = s->rfind('.');
  if (dot == absl::string_view::npos) {
    const absl::string_view last = *s;
    *s = {};
    return last;
  }
  const absl::string_view last = s->substr(dot + 1);
  *s = s->substr(0, dot);
  return last;
}

bool IsDirection(absl::string_view s) {
  return s == "forward" || s == "backward";
}

bool IsModuleName(absl::string_view s) {
  return absl::StartsWith(s, "Module.") || absl::StartsWith(s, "Cell.");
}

}  // namespace

EntryKind ClassifyEntry(absl::string_view entry) {
  absl::string_view rest = entry;
  const absl::string_view last = PopLast(&rest);
  if (IsModuleName(entry)) {
    if (last == "parameters_grad") return EntryKind::kParametersGrad;
    if (IsNumber(last)) {
      const absl::string_view kind = PopLast(&rest);
      if (kind == "parameters_grad") return EntryKind::kParametersGrad;
      if (IsDirection(kind) && absl::StrContains(rest, '.'))
        return EntryKind::kModule;
    }
    return EntryKind::kOther;
  }
  const absl::string_view number = PopLast(&rest);
  if (!IsNumber(number)) return EntryKind::kOther;
  if (last == "debug") return EntryKind::kDebug;
  if (IsDirection(last) && absl::StrContains(rest, '.')) return EntryKind::kApi;
  return EntryKind::kOther;
}

std::string ApiEntry(absl::string_view prefix, absl::string_view op,
                     int64_t number, bool forward) {
  return absl::StrCat(prefix, ".", op, ".", number,
                      forward ? ".forward" : ".backward");
}

std::string ModuleEntry(absl::string_view module, int64_t number,
                        bool forward) {
  return absl::StrCat(module, forward ? ".forward." : ".backward.", number);
}

std::string ParametersGradEntry(absl::string_view module, int64_t number) {
  return absl::StrCat(module, ".parameters_grad.", number);
}

absl::string_view ModuleOfEntry(absl::string_view entry) {
  const EntryKind kind = ClassifyEntry(entry);
  absl::string_view rest = entry;
  if (kind == EntryKind::kModule) {
    PopLast(&rest);
    PopLast(&rest);
    return rest;
  }
  if (kind == EntryKind::kParametersGrad) {
    if (PopLast(&rest) != "parameters_grad") PopLast(&rest);
    return rest;
  }
  return {};
}

absl::string_view OpOfEntry(absl::string_view entry) {
  if (ClassifyEntry(entry) != EntryKind::kApi) return {};
  PopLast(&entry);
  PopLast(&entry);
  return PopLast(&entry);
}

bool IsBackwardEntry(absl::string_view entry) {
  absl::string_view rest = entry;
  const absl::string_view last = PopLast(&rest);
  if (IsModuleName(entry)) return PopLast(&rest) == "backward";
  return last == "backward";
}

std::string EscapeFileName(absl::string_view name,
                           absl::string_view extension) {
  const auto harmless = [](char c) {
    const unsigned char u = static_cast<unsigned char>(c);
    return u >= 0x20 && u != 0x7f && c != '/' && c != '\\';
  };
  const bool dots = absl::c_all_of(name, [](char c) { return c == '.'; });
  // Names with '%' are escaped too, because it marks an escaped name.
  if (!name.empty() && !dots &&
      name.size() + extension.size() <= kMaxFileName &&
      absl::c_all_of(name, harmless) && !absl::StrContains(name, '%')) {
    return absl::StrCat(name, extension);
  }
  std::string safe;
  for (const char c : name) safe.push_back(harmless(c) && c != '%' ? c : '_');
  const XXH128_hash_t hash = XXH3_128bits(name.data(), name.size());
  const std::string suffix =
      absl::StrFormat("%%%016x%016x", hash.high64, hash.low64);
  const size_t room = kMaxFileName - extension.size() - suffix.size();
  if (safe.size() > room) {
    safe.resize(room);
    // Not in the middle of a UTF-8 sequence.
    while (!safe.empty() &&
           (static_cast<unsigned char>(safe.back()) & 0xc0) == 0x80)
      safe.pop_back();
    if (!safe.empty() && static_cast<unsigned char>(safe.back()) >= 0xc0)
      safe.pop_back();
  }
  return absl::StrCat(safe, suffix, extension);
}

}  // namespace rankprobe
