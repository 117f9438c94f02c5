// SPDX-License-Identifier: Apache-2.0
#include "common/manual/manual.h"

#include <memory>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace rankprobe {

namespace {

constexpr size_t kWidth = 79;
constexpr size_t kTextColumn = 26;

// Wraps `text` in lines of at most kWidth, indented by `indent` blanks. The
// first line already has `at` columns: `indent`, or more.
std::string Wrapped(absl::string_view text, size_t indent, size_t at) {
  std::string out;
  size_t column = at;
  if (column > indent) {
    absl::StrAppend(&out, "\n", std::string(indent, ' '));
    column = indent;
  }
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (column > indent && column + 1 + word.size() > kWidth) {
      absl::StrAppend(&out, "\n", std::string(indent, ' '));
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    absl::StrAppend(&out, word);
    column += word.size();
  }
  out += '\n';
  return out;
}

std::string TermLine(const std::string& term, const std::string& text) {
  std::string head = absl::StrCat("  ", term);
  const bool fits = head.size() + 2 <= kTextColumn;
  if (fits) head.resize(kTextColumn, ' ');
  return absl::StrCat(
      head, Wrapped(text, kTextColumn, fits ? kTextColumn : kTextColumn + 1));
}

std::string FlagLine(const Flag& flag) {
  std::string head = absl::StrJoin(flag.names, ", ");
  const std::string value =
      flag.choices.empty() ? flag.value : absl::StrJoin(flag.choices, "|");
  if (!value.empty()) absl::StrAppend(&head, head.empty() ? "" : " ", value);
  return TermLine(
      head,
      absl::StrCat(flag.text,
                   flag.required && !flag.names.empty() ? " (required)" : ""));
}

std::string FlagLines(const std::string& title,
                      const std::vector<Flag>& flags) {
  if (flags.empty()) return "";
  std::string out = absl::StrCat("\n", title, ":\n");
  for (const Flag& flag : flags) out += FlagLine(flag);
  return out;
}

std::string Usage(const Command& command, const std::string& name) {
  std::string out = name;
  if (!command.commands.empty()) out += " COMMAND";
  for (const Flag& positional : command.positionals)
    absl::StrAppend(&out, " ", PlaceOf(positional));
  for (const Flag& flag : command.flags) {
    if (flag.required)
      absl::StrAppend(&out, " ", flag.names.back(), " ", flag.value);
  }
  if (!command.flags.empty()) out += " [OPTIONS]";
  return out;
}

std::string RootHelp(const Manual& manual, const Command& root) {
  std::string out = absl::StrCat(root.name, ": ", root.summary, "\n");
  if (!root.details.empty()) absl::StrAppend(&out, root.details, "\n");
  absl::StrAppend(&out, "\nUsage: ", Usage(root, root.name), "\n");
  if (!root.commands.empty()) {
    absl::StrAppend(&out, "       ", root.name,
                    " COMMAND --help    for one command\n");
  }
  for (const Manual::Purpose& purpose : PurposesOf(manual, root)) {
    absl::StrAppend(&out, "\n", purpose.title, ":\n");
    for (const std::string& name : purpose.commands) {
      const auto command = absl::c_find_if(
          root.commands, [&](const Command& c) { return c.name == name; });
      out += TermLine(name, command->summary);
    }
  }
  out +=
      FlagLines(root.commands.empty() ? "Options" : "Options of every command",
                root.flags);
  if (!manual.exit_codes.empty()) {
    const std::string codes =
        absl::StrJoin(manual.exit_codes, "; ",
                      [](std::string* text, const Manual::Term& code) {
                        absl::StrAppend(text, code.term, " ", code.text);
                      });
    absl::StrAppend(&out, "\nExit codes: ");
    out += Wrapped(absl::StrCat(codes, "."), 12, 12);
  }
  return out;
}

std::string CommandHelp(const Manual& manual, const Command& root,
                        const Command& command, const std::string& path) {
  std::string out = absl::StrCat(command.summary, "\n");
  if (!command.details.empty()) absl::StrAppend(&out, command.details, "\n");
  const std::string name = absl::StrCat(root.name, " ", path);
  absl::StrAppend(&out, "\nUsage: ", Usage(command, name), "\n");
  const auto examples = manual.examples.find(path);
  if (examples != manual.examples.end()) {
    for (size_t i = 0; i < examples->second.size(); ++i) {
      absl::StrAppend(&out, i == 0 ? "For example:\n" : "", "  ",
                      examples->second[i], "\n");
    }
  }
  if (!command.commands.empty()) {
    out += "\nCommands:\n";
    for (const Command& sub : command.commands)
      out += TermLine(sub.name, sub.summary);
  }
  if (!command.positionals.empty())
    out += FlagLines("Arguments", command.positionals);
  out += FlagLines("Options", command.flags);
  std::vector<std::string> common;
  for (const Flag& flag : root.flags) {
    if (flag.names.back() != "--version") common.push_back(flag.names.back());
  }
  absl::StrAppend(&out, "\nOptions of every command (", root.name,
                  " --help says more):\n  ");
  out += Wrapped(absl::StrJoin(common, " "), 2, 2);
  return out;
}

// Uses better names than CLI11's TEXT for the values of flags.
Command Named(const Manual& manual, Command command) {
  for (std::vector<Flag>* flags : {&command.flags, &command.positionals}) {
    for (Flag& flag : *flags) {
      if (flag.names.empty()) continue;
      const auto value = manual.values.find(flag.names.back());
      if (value != manual.values.end() && !flag.value.empty())
        flag.value = value->second;
    }
  }
  const auto worker = manual.worker_flags.find(command.name);
  if (worker != manual.worker_flags.end()) {
    command.flags.insert(command.flags.end(), worker->second.begin(),
                         worker->second.end());
  }
  for (Command& sub : command.commands) sub = Named(manual, std::move(sub));
  return command;
}

class Formatter : public CLI::FormatterBase {
 public:
  explicit Formatter(Manual manual) : manual_(std::move(manual)) {}

  std::string make_help(const CLI::App* app, std::string,
                        CLI::AppFormatMode) const override {
    std::vector<std::string> path;
    for (; app->get_parent() != nullptr; app = app->get_parent())
      path.insert(path.begin(), app->get_name());
    return HelpText(manual_, Named(manual_, Describe(*app)), path);
  }

 private:
  const Manual manual_;
};

}  // namespace

std::vector<Manual::Purpose> PurposesOf(const Manual& manual,
                                        const Command& root) {
  std::vector<Manual::Purpose> out;
  std::set<std::string> placed;
  const auto has = [&](const std::string& name) {
    return absl::c_any_of(root.commands,
                          [&](const Command& c) { return c.name == name; });
  };
  for (const Manual::Purpose& purpose : manual.purposes) {
    Manual::Purpose kept{purpose.title, {}};
    for (const std::string& name : purpose.commands) {
      if (has(name) && placed.insert(name).second)
        kept.commands.push_back(name);
    }
    if (!kept.commands.empty()) out.push_back(std::move(kept));
  }
  Manual::Purpose other{"Other", {}};
  for (const Command& command : root.commands) {
    if (placed.count(command.name) == 0) other.commands.push_back(command.name);
  }
  if (!other.commands.empty()) out.push_back(std::move(other));
  return out;
}

std::string HelpText(const Manual& manual, const Command& root,
                     const std::vector<std::string>& path) {
  const Command* command = &root;
  for (const std::string& name : path) {
    const auto it = absl::c_find_if(
        command->commands, [&](const Command& c) { return c.name == name; });
    if (it == command->commands.end()) break;  // a hidden one
    command = &*it;
  }
  if (command == &root) return RootHelp(manual, root);
  return CommandHelp(manual, root, *command, absl::StrJoin(path, " "));
}

void UseHelp(const Manual& manual, CLI::App* app) {
  app->set_help_flag("-h,--help", "this help");
  app->formatter(std::make_shared<Formatter>(manual));
}

std::optional<absl::StatusOr<std::string>> WrittenHelp(int argc,
                                                       const char* const* argv,
                                                       const CLI::App& app,
                                                       const Manual& manual) {
  constexpr absl::string_view kFlag = "--dump-help=";
  if (argc != 2 || !absl::StartsWith(argv[1], kFlag)) return std::nullopt;
  const std::string format(absl::string_view(argv[1]).substr(kFlag.size()));
  const Command root = Named(manual, Describe(app));
  if (format == "man") return ManPage(manual, root);
  if (format == "bash") return BashCompletion(root);
  if (format == "zsh") return ZshCompletion(root);
  if (format == "fish") return FishCompletion(root);
  return absl::InvalidArgumentError(absl::StrCat(
      "--dump-help=", format, ": one of man, bash, zsh, fish is possible"));
}

}  // namespace rankprobe
