// SPDX-License-Identifier: Apache-2.0
// Help, man page and shell completion of a program, from one description: the
// CLI11 app that parses its command line, and texts that such an app cannot
// hold.
//
//   CLI::App app("..", "rankprobe");
//   UseHelp(manual, &app);          // before sub-commands are added
//   ..
//   if (const auto text = WrittenHelp(argc, argv, app, manual)) { print; end }
//
// The build makes the files of share/man and of the shells with `PROGRAM
// --dump-help=man|bash|zsh|fish`, which is not in the help itself. Values only;
// thread-compatible.
#ifndef RANKPROBE_COMMON_MANUAL_MANUAL_H_
#define RANKPROBE_COMMON_MANUAL_MANUAL_H_

#include <CLI/CLI.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/manual/command.h"

namespace rankprobe {

struct Manual {
  // A task of users, and the commands for it, in this order.
  struct Purpose {
    std::string title;
    std::vector<std::string> commands;
  };
  struct Term {
    std::string term;
    std::string text;
  };

  // Section of the manual: 1 or 8.
  int section = 1;
  // Paragraphs separated by empty lines.
  std::string description;
  // Commands without a purpose are listed last, under "Other".
  std::vector<Purpose> purposes;
  // Command lines to copy, by command.
  std::map<std::string, std::vector<std::string>> examples;
  // Names of the values of flags, "--run": "NAME".
  std::map<std::string, std::string> values;
  // By command: flags that are read by another program, not by CLI11.
  std::map<std::string, std::vector<Flag>> worker_flags;
  std::vector<Term> exit_codes;
  std::vector<Term> environment;
  std::vector<Term> files;
  // "rankprobed(8)"
  std::vector<std::string> see_also;
};

// Sets --help for the app and for sub-commands that are added later.
void UseHelp(const Manual& manual, CLI::App* app);

// The text that --dump-help requests, if it is on the command line;
// INVALID_ARGUMENT for an unknown format.
std::optional<absl::StatusOr<std::string>> WrittenHelp(int argc,
                                                       const char* const* argv,
                                                       const CLI::App& app,
                                                       const Manual& manual);

// The parts, for tests. `path`: names down to the command, {"config", "get"}.
std::string HelpText(const Manual& manual, const Command& root,
                     const std::vector<std::string>& path);
std::string ManPage(const Manual& manual, const Command& root);
std::string BashCompletion(const Command& root);
std::string ZshCompletion(const Command& root);
std::string FishCompletion(const Command& root);

// The manual's purposes, limited to commands of the program, and the commands
// without a purpose.
std::vector<Manual::Purpose> PurposesOf(const Manual& manual,
                                        const Command& root);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_MANUAL_MANUAL_H_
