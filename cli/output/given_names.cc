// SPDX-License-Identifier: Apache-2.0
#include "cli/output/given_names.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace rankprobe {
namespace {

struct Named {
  std::string directory;
  std::string given;
  GivenForm form;
};

std::vector<Named>& Names() {
  static auto* const names = new std::vector<Named>;
  return *names;
}

// Returns "12" for "/step12/.." and removes both; empty if `rest` does not
// begin in this way.
absl::string_view TakeNumber(absl::string_view prefix,
                             absl::string_view* rest) {
  absl::string_view after = *rest;
  if (!absl::ConsumePrefix(&after, prefix)) return "";
  size_t digits = 0;
  while (digits < after.size() &&
         absl::ascii_isdigit(static_cast<unsigned char>(after[digits])))
    ++digits;
  const absl::string_view number = after.substr(0, digits);
  if (digits > 0) *rest = after.substr(digits);
  return number;
}

// Returns the name of the place at the beginning of `rest` and removes the
// place.
std::string PlaceName(const Named& named, absl::string_view* rest) {
  std::string name = named.given;
  const absl::string_view step = TakeNumber("/step", rest);
  if (named.form == GivenForm::kRun) {
    if (!step.empty()) absl::StrAppend(&name, "@", step);
    for (const char* const prefix : {"/rank", "/proc"}) {
      const absl::string_view rank = TakeNumber(prefix, rest);
      if (!rank.empty()) absl::StrAppend(&name, prefix, rank);
    }
    absl::ConsumePrefix(rest, "/dump.json");
    return name;
  }
  if (!step.empty() && named.form == GivenForm::kSteps)
    absl::StrAppend(&name, "/step", step);
  absl::ConsumePrefix(rest, "/rank0/dump.json");
  return name;
}

}  // namespace

void NameTemporary(std::string directory, std::string given, GivenForm form) {
  Names().push_back({std::move(directory), std::move(given), form});
}

std::string WithGivenNames(absl::string_view text) {
  std::string out(text);
  // In reverse order, because directories derived from a temporary directory
  // were named after it.
  for (auto named = Names().rbegin(); named != Names().rend(); ++named) {
    std::string replaced;
    absl::string_view rest = out;
    for (size_t at = rest.find(named->directory); at != absl::string_view::npos;
         at = rest.find(named->directory)) {
      absl::StrAppend(&replaced, rest.substr(0, at));
      rest.remove_prefix(at + named->directory.size());
      absl::StrAppend(&replaced, PlaceName(*named, &rest));
    }
    absl::StrAppend(&replaced, rest);
    out = std::move(replaced);
  }
  return out;
}

}  // namespace rankprobe
