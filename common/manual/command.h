// SPDX-License-Identifier: Apache-2.0
// A command line as data: the definition of a CLI11 app, without the library.
// Help, man page and completions are all made from it, so they cannot disagree
// with what is parsed. Values only; thread-compatible.
#ifndef RANKPROBE_COMMON_MANUAL_COMMAND_H_
#define RANKPROBE_COMMON_MANUAL_COMMAND_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace rankprobe {

struct Flag {
  // "-o", "--output_path", the short spelling first. Empty for a positional.
  std::vector<std::string> names;
  // Name of the flag's value, "FILE"; empty if it has none.
  std::string value;
  // The only legal values, if they are limited.
  std::vector<std::string> choices;
  std::string text;
  bool required = false;
};

struct Command {
  // "rankprobe", "compare", "get".
  std::string name;
  // One line, and the additional text of --help.
  std::string summary;
  std::string details;
  std::vector<Flag> positionals;
  // For a command below the root: without flags that the root has too.
  std::vector<Flag> flags;
  std::vector<Command> commands;
};

// Flags and commands in the group "" are hidden and left out. The first line of
// the description is the summary. "-tp: text" in the text of a flag names
// another spelling, which the program reads before CLI11 does.
Command Describe(const CLI::App& root);

// How a positional appears in the synopsis of a command: "TARGET", or
// "[REFERENCE]" if it is optional.
std::string PlaceOf(const Flag& positional);

// All that can be given with a dash: the flags, and positionals that also have
// a spelling.
std::vector<Flag> SpelledFlags(const Command& command);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_MANUAL_COMMAND_H_
