// SPDX-License-Identifier: Apache-2.0
#include "common/config/api_list.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/config/config_reader.h"
#include "common/text/visible_text.h"
#include "rapidjson/document.h"

namespace rankprobe {
namespace {

struct Section {
  absl::string_view name;
  // Empty: the section is skipped.
  absl::string_view prefix;
};

constexpr Section kSections[] = {
    {"functional", "Functional"}, {"tensor", "Tensor"},
    {"torch", "Torch"},           {"_VF", "VF"},
    {"torch_npu", "NPU"},         {"distributed", "Distributed"},
    {"mindspeed", "MindSpeed"},   {"aten", ""},
    {"npu_distributed", ""}};

// Finds a section by its name or, if `or_prefix`, by its prefix.
const Section* FindSection(absl::string_view name, bool or_prefix) {
  const auto it = std::find_if(
      std::begin(kSections), std::end(kSections), [&](const Section& s) {
        return s.name == name ||
               (or_prefix && !s.prefix.empty() && s.prefix == name);
      });
  return it == std::end(kSections) ? nullptr : it;
}

std::string LegalPrefixes() {
  std::vector<absl::string_view> prefixes;
  for (const Section& section : kSections) {
    if (!section.prefix.empty()) prefixes.push_back(section.prefix);
  }
  return absl::StrJoin(prefixes, ", ");
}

// Whether `text` is a dotted path below a module.
bool IsName(absl::string_view text) {
  return !text.empty() && !absl::ascii_isdigit(text[0]) && text[0] != '.' &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '_' || c == '.';
         });
}

std::vector<std::string>* NamesOf(absl::string_view prefix, ApiList* list) {
  for (auto& [known, names] : *list) {
    if (known == prefix) return &names;
  }
  return &list->emplace_back(prefix, std::vector<std::string>()).second;
}

absl::StatusOr<ApiList> OfJson(absl::string_view text) {
  rapidjson::Document document;
  RP_RETURN_IF_ERROR(ParseConfigDocument(text, &document));
  ApiList list;
  for (const auto& member : document.GetObject()) {
    const absl::string_view prefix(member.name.GetString(),
                                   member.name.GetStringLength());
    const Section* const section = FindSection(prefix, /*or_prefix=*/true);
    if (section == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          VisibleText(prefix.substr(0, 100)),
          ": no functions are recorded by this prefix; expected one of ",
          LegalPrefixes()));
    }
    if (!member.value.IsArray()) {
      return absl::InvalidArgumentError(absl::StrCat(
          VisibleText(prefix.substr(0, 100)), ": expected a list of names"));
    }
    std::vector<std::string>* const names =
        section->prefix.empty() ? nullptr : NamesOf(section->prefix, &list);
    for (const rapidjson::Value& item : member.value.GetArray()) {
      if (!item.IsString() ||
          !IsName({item.GetString(), item.GetStringLength()})) {
        return absl::InvalidArgumentError(
            absl::StrCat(VisibleText(prefix.substr(0, 100)), ": ",
                         JsonText(item), " is not the name of a function"));
      }
      if (names != nullptr)
        names->emplace_back(item.GetString(), item.GetStringLength());
    }
  }
  return list;
}

absl::Status Fault(int line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
}

absl::string_view Unquoted(absl::string_view name) {
  for (const char* quote : {"'", "\""}) {
    if (name.size() > 1 && absl::ConsumePrefix(&name, quote))
      absl::ConsumeSuffix(&name, quote);
  }
  return name;
}

absl::StatusOr<ApiList> OfYaml(absl::string_view text) {
  ApiList list;
  const Section* section = nullptr;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripTrailingAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty() || line == "---") continue;
    if (line[0] != ' ' && line[0] != '-') {
      const size_t colon = line.find(':');
      section = FindSection(line.substr(0, colon), /*or_prefix=*/false);
      if (section == nullptr || colon == absl::string_view::npos) {
        return Fault(
            number,
            absl::StrCat("expected one of the sections ",
                         absl::StrJoin(kSections, ", ",
                                       [](std::string* out, const Section& s) {
                                         absl::StrAppend(out, s.name);
                                       })));
      }
      const absl::string_view rest =
          absl::StripLeadingAsciiWhitespace(line.substr(colon + 1));
      if (!rest.empty() && rest != "[]") {
        return Fault(number, "expected names, each on its line after '- '");
      }
      if (!section->prefix.empty()) NamesOf(section->prefix, &list);
      continue;
    }
    absl::string_view name = absl::StripLeadingAsciiWhitespace(line);
    const bool dash = absl::ConsumePrefix(&name, "- ");
    name = Unquoted(absl::StripAsciiWhitespace(name));
    if (!dash || section == nullptr || !IsName(name))
      return Fault(number, "expected '- NAME' below a section");
    if (!section->prefix.empty())
      NamesOf(section->prefix, &list)->emplace_back(name);
  }
  return list;
}

}  // namespace

absl::StatusOr<ApiList> ParseApiList(absl::string_view text) {
  if (text.size() > kMaxApiListBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the list has ", text.size(), " bytes; at most ",
                     kMaxApiListBytes, " are accepted"));
  }
  const absl::string_view begin = absl::StripLeadingAsciiWhitespace(text);
  if (begin.empty()) return absl::InvalidArgumentError("the list is empty");
  RP_ASSIGN_OR_RETURN(ApiList list,
                      begin[0] == '{' ? OfJson(text) : OfYaml(text));
  // Such a list would record nothing, on all ranks: it is a mistake.
  if (std::all_of(list.begin(), list.end(),
                  [](const auto& names) { return names.second.empty(); })) {
    return absl::InvalidArgumentError("the list is empty: it has no function");
  }
  return list;
}

}  // namespace rankprobe
