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
  // "-o", "--output_path"; the short spelling first. Of a positional: empty.
  std::vector<std::string> names;
  // Of what follows, "FILE"; empty if nothing does.
  std::string value;
  // What the value may be, if only these.
  std::vector<std::string> choices;
  std::string text;
  bool required = false;
};

struct Command {
  // "rankprobe", "compare", "get".
  std::string name;
  // One line, and what --help says besides.
  std::string summary;
  std::string details;
  std::vector<Flag> positionals;
  // Of a command below the root: without those that the root has too.
  std::vector<Flag> flags;
  std::vector<Command> commands;
};

// Flags and commands of the empty group are hidden and left out. The
// description's first line is the summary. "-tp: text" in the text of a flag
// names another spelling, which the program reads before CLI11 does.
Command Describe(const CLI::App& root);

// Of a positional in the line of a command: "TARGET", or "[REFERENCE]" of one
// that may be left out.
std::string PlaceOf(const Flag& positional);

// What may be typed with a dash: the flags, and of the positionals those that
// have a spelling besides their place.
std::vector<Flag> SpelledFlags(const Command& command);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_MANUAL_COMMAND_H_
