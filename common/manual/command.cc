// SPDX-License-Identifier: Apache-2.0
#include "common/manual/command.h"

#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace rankprobe {

namespace {

// CLI11 appends the checks to the name of the type: "FLOAT:FLOAT in [1 - 2]",
// "TEXT:{db,json}".
void ReadType(const std::string& type, Flag* flag) {
  static const auto* const kChecks = new std::vector<std::string>{
      ":INT", ":UINT", ":FLOAT", ":NONNEGATIVE", ":POSITIVE", ":NUMBER"};
  flag->value = type;
  const size_t brace = type.find(":{");
  if (brace != std::string::npos && type.back() == '}') {
    flag->value = type.substr(0, brace);
    flag->choices =
        absl::StrSplit(type.substr(brace + 2, type.size() - brace - 3), ',');
  }
  for (const std::string& check : *kChecks) {
    const size_t at = flag->value.find(check);
    if (at != std::string::npos) flag->value.resize(at);
  }
}

// Splits "-lm [FILE]: match layers" into a spelling and the text.
void ReadOtherSpelling(Flag* flag) {
  if (flag->text.size() < 2 || flag->text[0] != '-') return;
  const size_t colon = flag->text.find(": ");
  if (colon == std::string::npos) return;
  const std::string head = flag->text.substr(0, colon);
  const size_t blank = head.find(' ');
  if (blank != std::string::npos) flag->value = head.substr(blank + 1);
  flag->names.insert(flag->names.begin(), head.substr(0, blank));
  flag->text.erase(0, colon + 2);
}

Flag FlagOf(const CLI::Option& option) {
  Flag flag;
  for (const std::string& name : option.get_snames())
    flag.names.push_back(absl::StrCat("-", name));
  for (const std::string& name : option.get_lnames())
    flag.names.push_back(absl::StrCat("--", name));
  flag.text = option.get_description();
  flag.required = option.get_required();
  if (option.get_type_size() != 0) ReadType(option.get_type_name(), &flag);
  if (option.get_positional())
    flag.value = absl::AsciiStrToUpper(option.get_name(/*positional=*/true));
  // A pure positional has no spelling.
  if (!flag.names.empty()) ReadOtherSpelling(&flag);
  return flag;
}

Command CommandOf(const CLI::App& app, const std::set<std::string>& known) {
  Command command;
  command.name = app.get_name();
  const std::pair<std::string, std::string> description =
      absl::StrSplit(app.get_description(), absl::MaxSplits('\n', 1));
  command.summary = description.first;
  command.details = description.second;
  std::set<std::string> below = known;
  for (const CLI::Option* const option : app.get_options()) {
    if (option->get_group().empty()) continue;
    Flag flag = FlagOf(*option);
    if (option->get_positional()) {
      command.positionals.push_back(std::move(flag));
    } else if (known.find(flag.names.back()) == known.end()) {
      below.insert(flag.names.back());
      command.flags.push_back(std::move(flag));
    }
  }
  const auto shown = [](const CLI::App* sub) {
    return !sub->get_name().empty() && !sub->get_group().empty();
  };
  for (const CLI::App* const sub : app.get_subcommands(shown))
    command.commands.push_back(CommandOf(*sub, below));
  return command;
}

}  // namespace

Command Describe(const CLI::App& root) { return CommandOf(root, {}); }

std::string PlaceOf(const Flag& positional) {
  return positional.required ? positional.value
                             : absl::StrCat("[", positional.value, "]");
}

std::vector<Flag> SpelledFlags(const Command& command) {
  std::vector<Flag> flags;
  for (const Flag& positional : command.positionals) {
    if (!positional.names.empty()) flags.push_back(positional);
  }
  flags.insert(flags.end(), command.flags.begin(), command.flags.end());
  return flags;
}

}  // namespace rankprobe
