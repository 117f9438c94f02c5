// SPDX-License-Identifier: Apache-2.0
// roff of the man(7) macros. Text is never read as a request: what begins with
// a dot or a quote, and every backslash and minus, is escaped.

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/version.h"
#include "common/manual/manual.h"

namespace rankprobe {

namespace {

std::string Escaped(const std::string& text) {
  std::string out = absl::StrReplaceAll(
      text, {{"\\", "\\e"}, {"-", "\\-"}, {"`", "\\(ga"}, {"^", "\\(ha"}});
  if (!out.empty() && (out[0] == '.' || out[0] == '\'')) out.insert(0, "\\&");
  return out;
}

std::string Bold(const std::string& text) {
  return absl::StrCat("\\fB", Escaped(text), "\\fR");
}

std::string Italic(const std::string& text) {
  return absl::StrCat("\\fI", Escaped(text), "\\fR");
}

std::string Lines(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (std::string& line : lines) line = line.empty() ? ".PP" : Escaped(line);
  return absl::StrCat(absl::StrJoin(lines, "\n"), "\n");
}

std::string Term(const std::string& head, const std::string& text) {
  return absl::StrCat(".TP\n", head, "\n", Lines(text));
}

std::string FlagTerm(const Flag& flag) {
  std::string head = absl::StrJoin(
      flag.names, ", ", [](std::string* text, const std::string& name) {
        absl::StrAppend(text, Bold(name));
      });
  const std::string value =
      flag.choices.empty() ? flag.value : absl::StrJoin(flag.choices, "|");
  if (!value.empty())
    absl::StrAppend(&head, head.empty() ? "" : " ", Italic(value));
  const bool required = flag.required && !flag.names.empty();
  return Term(head, absl::StrCat(flag.text, required ? " (required)" : ""));
}

void AppendCommand(const Manual& manual, const Command& command,
                   const std::string& path, std::string* out) {
  if (!command.commands.empty()) {
    for (const Command& sub : command.commands) {
      AppendCommand(manual, sub, absl::StrCat(path, " ", sub.name), out);
    }
    return;
  }
  std::string head = Bold(path);
  for (const Flag& positional : command.positionals) {
    absl::StrAppend(&head, " ", positional.required ? "" : "[",
                    Italic(positional.value), positional.required ? "" : "]");
  }
  for (const Flag& flag : command.flags) {
    if (flag.required)
      absl::StrAppend(&head, " ", Bold(flag.names.back()), " ",
                      Italic(flag.value));
  }
  if (!command.flags.empty())
    absl::StrAppend(&head, " [", Italic("OPTIONS"), "]");
  std::string text = command.summary;
  if (!command.details.empty()) absl::StrAppend(&text, "\n", command.details);
  absl::StrAppend(out, Term(head, text), ".RS\n");
  for (const Flag& positional : command.positionals)
    *out += FlagTerm(positional);
  for (const Flag& flag : command.flags) *out += FlagTerm(flag);
  const auto examples = manual.examples.find(path);
  if (examples != manual.examples.end()) {
    for (const std::string& example : examples->second)
      absl::StrAppend(out, ".PP\n.EX\n", Escaped(example), "\n.EE\n");
  }
  *out += ".RE\n";
}

void AppendTerms(const std::string& title,
                 const std::vector<Manual::Term>& terms, std::string* out) {
  if (terms.empty()) return;
  absl::StrAppend(out, ".SH ", title, "\n");
  for (const Manual::Term& term : terms)
    *out += Term(Bold(term.term), term.text);
}

}  // namespace

std::string ManPage(const Manual& manual, const Command& root) {
  std::string out = absl::StrCat(
      ".\\\" Made by ", root.name, " --dump-help=man.\n.TH ",
      absl::AsciiStrToUpper(root.name), " ", manual.section, " \"\" \"",
      "rankprobe ", Version(), "\" \"rankprobe manual\"\n.SH NAME\n", root.name,
      " \\- ", Escaped(root.summary), "\n.SH SYNOPSIS\n", Bold(root.name));
  if (!root.commands.empty()) absl::StrAppend(&out, " ", Italic("COMMAND"));
  absl::StrAppend(&out, " [", Italic("OPTIONS"), "]\n.SH DESCRIPTION\n",
                  Lines(manual.description));
  if (!root.commands.empty()) out += ".SH COMMANDS\n";
  for (const Manual::Purpose& purpose : PurposesOf(manual, root)) {
    absl::StrAppend(&out, ".SS ", Escaped(purpose.title), "\n");
    for (const std::string& name : purpose.commands) {
      const auto command = absl::c_find_if(
          root.commands, [&](const Command& c) { return c.name == name; });
      AppendCommand(manual, *command, name, &out);
    }
  }
  out += ".SH OPTIONS\n";
  if (!root.commands.empty())
    out += "These are taken by every command, before or after its name.\n";
  for (const Flag& flag : root.flags) out += FlagTerm(flag);
  AppendTerms("EXIT STATUS", manual.exit_codes, &out);
  AppendTerms("ENVIRONMENT", manual.environment, &out);
  AppendTerms("FILES", manual.files, &out);
  if (!manual.see_also.empty()) {
    absl::StrAppend(&out, ".SH SEE ALSO\n",
                    Escaped(absl::StrJoin(manual.see_also, ", ")), "\n");
  }
  return out;
}

}  // namespace rankprobe
