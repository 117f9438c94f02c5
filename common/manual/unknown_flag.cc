// SPDX-License-Identifier: Apache-2.0
#include "common/manual/unknown_flag.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/text/nearest.h"

namespace rankprobe {

std::optional<std::string> UnknownFlag(const CLI::App& app,
                                       const std::string& path) {
  std::vector<std::string> flags;
  for (const CLI::Option* const option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      flags.push_back(absl::StrCat("--", name));
    for (const std::string& name : option->get_snames())
      flags.push_back(absl::StrCat("-", name));
  }
  for (const std::string& word : app.remaining()) {
    if (!absl::StartsWith(word, "-")) continue;
    const std::string flag = word.substr(0, word.find('='));
    return absl::StrCat("there is no flag ", flag, path.empty() ? "" : " of ",
                        absl::StripSuffix(path, " "), DidYouMean(flag, flags));
  }
  return std::nullopt;
}

}  // namespace rankprobe
