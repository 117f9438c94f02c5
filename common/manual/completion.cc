// SPDX-License-Identifier: Apache-2.0
// Completion for bash, zsh and fish: commands, their flags, and the values of
// flags that have few. Everything else completes to file names.
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/manual/manual.h"

namespace rankprobe {

namespace {

using Path = std::vector<std::string>;

// Visits every command below the root, with its path and all flags that it
// takes.
void ForEach(const Command& command, const Path& path,
             const std::vector<Flag>& above,
             const std::function<void(const Command&, const Path&,
                                      const std::vector<Flag>&)>& visit) {
  std::vector<Flag> flags = SpelledFlags(command);
  flags.insert(flags.end(), above.begin(), above.end());
  visit(command, path, flags);
  for (const Command& sub : command.commands) {
    Path below = path;
    below.push_back(sub.name);
    ForEach(sub, below, flags, visit);
  }
}

std::vector<std::string> NamesOf(const std::vector<Flag>& flags) {
  std::vector<std::string> out;
  for (const Flag& flag : flags)
    out.insert(out.end(), flag.names.begin(), flag.names.end());
  return out;
}

std::vector<std::string> NamesOf(const std::vector<Command>& commands) {
  std::vector<std::string> out;
  out.reserve(commands.size());
  for (const Command& command : commands) out.push_back(command.name);
  return out;
}

// Quotes for a POSIX shell, or for fish, in single quotes.
std::string Quoted(const std::string& text, const char* quote) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", quote}}), "'");
}

// Escapes for '..' of zsh's _arguments, where brackets and colons have a
// meaning.
std::string ZshText(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

}  // namespace

std::string BashCompletion(const Command& root) {
  std::string values, words;
  ForEach(root, {}, {},
          [&](const Command& command, const Path& path,
              const std::vector<Flag>& flags) {
            const std::string key = absl::StrJoin(path, " ");
            std::vector<std::string> all = NamesOf(command.commands);
            const std::vector<std::string> names = NamesOf(flags);
            all.insert(all.end(), names.begin(), names.end());
            absl::StrAppend(&words, "    '", key, "') words='",
                            absl::StrJoin(all, " "), "' ;;\n");
            for (const Flag& flag : SpelledFlags(command)) {
              if (flag.choices.empty()) continue;
              absl::StrAppend(&values, "    '", key, " ", flag.names.back(),
                              "') words='", absl::StrJoin(flag.choices, " "),
                              "' ;;\n");
            }
          });
  std::vector<std::string> with_value, paths;
  ForEach(
      root, {}, {},
      [&](const Command& command, const Path& path, const std::vector<Flag>&) {
        if (!path.empty()) paths.push_back(absl::StrJoin(path, " "));
        for (const Flag& flag : SpelledFlags(command)) {
          if (flag.value.empty()) continue;
          with_value.insert(with_value.end(), flag.names.begin(),
                            flag.names.end());
        }
      });
  const std::string function = absl::StrCat("_", root.name);
  return absl::StrCat(
      "# bash completion for ", root.name, "; made by ", root.name,
      " --dump-help=bash\n", function, "() {\n",
      "  local current=${COMP_WORDS[COMP_CWORD]} path='' word words='' i\n"
      "  local paths='|",
      absl::StrJoin(paths, "|"),
      "|'\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    word=${COMP_WORDS[i]}\n"
      "    case $paths in *\"|${path:+$path }$word|\"*) "
      "path=\"${path:+$path }$word\" ;; esac\n"
      "  done\n"
      "  case \"$path ${COMP_WORDS[COMP_CWORD - 1]}\" in\n",
      values,
      "  esac\n"
      "  if [ -z \"$words\" ]; then\n"
      "    case ${COMP_WORDS[COMP_CWORD - 1]} in\n"
      "    ",
      with_value.empty() ? "''" : absl::StrJoin(with_value, " | "),
      ") return ;;  # a value: bash offers files\n"
      "    esac\n"
      "    case $path in\n",
      words,
      "    esac\n"
      "  fi\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "}\n"
      "complete -o default -F ",
      function, " ", root.name, "\n");
}

std::string ZshCompletion(const Command& root) {
  const auto arguments = [](const std::vector<Flag>& flags) {
    std::string out;
    for (const Flag& flag : flags) {
      const std::string value =
          flag.value.empty() ? ""
          : flag.choices.empty()
              ? absl::StrCat(":", ZshText(flag.value), ":_files")
              : absl::StrCat(":", ZshText(flag.value), ":(",
                             absl::StrJoin(flag.choices, " "), ")");
      for (const std::string& name : flag.names)
        absl::StrAppend(&out, " \\\n      '", name, "[", ZshText(flag.text),
                        "]", value, "'");
    }
    return out;
  };
  std::string out = absl::StrCat("#compdef ", root.name, "\n# Made by ",
                                 root.name, " --dump-help=zsh.\n");
  ForEach(
      root, {}, {},
      [&](const Command& command, const Path& path,
          const std::vector<Flag>& flags) {
        const std::string name =
            absl::StrCat("_", root.name, path.empty() ? "" : "__",
                         absl::StrJoin(path, "__"));
        absl::StrAppend(&out, name, "() {\n");
        if (command.commands.empty()) {
          absl::StrAppend(&out, "  _arguments", arguments(flags),
                          " \\\n      '*:file:_files'\n}\n");
          return;
        }
        absl::StrAppend(&out, "  local state line\n  local -a commands=(\n");
        for (const Command& sub : command.commands)
          absl::StrAppend(&out, "    '", ZshText(sub.name), ":",
                          absl::StrReplaceAll(sub.summary, {{"'", "'\\''"}}),
                          "'\n");
        absl::StrAppend(
            &out, "  )\n  _arguments -C", arguments(flags),
            " \\\n      '1: :->command' '*:: :->rest'\n"
            "  case $state in\n"
            "    command) _describe -t commands command commands ;;\n"
            "    rest) (( $+functions[",
            name, "__$words[1]] )) && ", name, "__$words[1] ;;\n  esac\n}\n");
      });
  absl::StrAppend(&out, "_", root.name, " \"$@\"\n");
  return out;
}

std::string FishCompletion(const Command& root) {
  std::string out =
      absl::StrCat("# fish completion for ", root.name, "; made by ", root.name,
                   " --dump-help=fish\n");
  ForEach(
      root, {}, {},
      [&](const Command& command, const Path& path, const std::vector<Flag>&) {
        std::string when;
        for (const std::string& word : path)
          absl::StrAppend(&when, when.empty() ? "" : "; and ",
                          "__fish_seen_subcommand_from ", word);
        const std::vector<std::string> below = NamesOf(command.commands);
        std::string here = when;
        if (!below.empty())
          absl::StrAppend(&here, here.empty() ? "" : "; and ",
                          "not __fish_seen_subcommand_from ",
                          absl::StrJoin(below, " "));
        for (const Command& sub : command.commands)
          absl::StrAppend(&out, "complete -c ", root.name, " -f -n ",
                          Quoted(here, "\\'"), " -a ", sub.name, " -d ",
                          Quoted(sub.summary, "\\'"), "\n");
        for (const Flag& flag : SpelledFlags(command)) {
          absl::StrAppend(&out, "complete -c ", root.name);
          if (!when.empty()) absl::StrAppend(&out, " -n ", Quoted(when, "\\'"));
          for (const std::string& name : flag.names)
            absl::StrAppend(&out,
                            name.rfind("--", 0) == 0 ? " -l "
                            : name.size() == 2       ? " -s "
                                                     : " -o ",
                            name.substr(name.rfind("--", 0) == 0 ? 2 : 1));
          if (!flag.choices.empty())
            absl::StrAppend(&out, " -x -a ",
                            Quoted(absl::StrJoin(flag.choices, " "), "\\'"));
          else if (!flag.value.empty())
            out += " -r";
          absl::StrAppend(&out, " -d ", Quoted(flag.text, "\\'"), "\n");
        }
      });
  return out;
}

}  // namespace rankprobe
