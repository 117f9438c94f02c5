// SPDX-License-Identifier: Apache-2.0
// rankprobe: the operator's command line.
#include <google/protobuf/stubs/logging.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/app.h"
#include "cli/cli_manual.h"
#include "cli/client/away_notes.h"
#include "cli/client/private_collectors.h"
#include "cli/exit_codes.h"
#include "cli/flags/analysis_flags.h"
#include "cli/flags/run_words.h"
#include "cli/output/output.h"
#include "collector/rpc/local_reader.h"
#include "common/base/clock.h"
#include "common/base/collector_address.h"
#include "common/base/version.h"
#include "common/io/file_system.h"
#include "common/manual/unknown_flag.h"
#include "common/rpc/grpc_channel.h"
#include "common/text/nearest.h"
#include "common/text/shell_word.h"

namespace rankprobe {

namespace {

std::optional<std::string> UnknownVerb(const CLI::App& app,
                                       const std::string& path) {
  std::vector<std::string> verbs;
  for (const CLI::App* const verb : app.get_subcommands(
           [](const CLI::App* sub) { return !sub->get_name().empty(); }))
    verbs.push_back(verb->get_name());
  if (verbs.empty()) return std::nullopt;
  for (const std::string& word : app.remaining()) {
    if (absl::StartsWith(word, "-")) continue;
    return absl::StrCat("there is no command ", path, word,
                        DidYouMean(word, verbs));
  }
  return std::nullopt;
}

// Returns the first unknown word of the command line, with a suggestion. Some
// of CLI11's own messages name a missing argument instead.
std::optional<std::string> UnknownWord(const CLI::App& root) {
  std::string path;
  for (const CLI::App* app = &root;;) {
    // acc_check and the verbs in Python pass the remaining words on.
    if (app->get_prefix_command()) return std::nullopt;
    if (const auto flag = UnknownFlag(*app, path)) return flag;
    const auto chosen = app->get_subcommands();
    if (chosen.empty()) return UnknownVerb(*app, path);
    app = chosen.front();
    absl::StrAppend(&path, app->get_name(), " ");
  }
}

// Returns CLI11's message, with a required argument named as in the usage line
// instead of by its alternative flag.
std::string WhatIsWrong(const CLI::App& root, const CLI::ParseError& error) {
  std::string what =
      absl::StrReplaceAll(std::string(error.what()),
                          {{"\n", " "}, {"A subcommand is", "a command is"}});
  const CLI::App* app = &root;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  for (const CLI::Option* const option : app->get_options()) {
    if (option->get_positional() && !option->get_lnames().empty() &&
        what ==
            absl::StrCat("--", option->get_lnames().front(), " is required")) {
      return absl::StrCat(
          absl::AsciiStrToUpper(option->get_name(/*positional=*/true)),
          " is required");
    }
  }
  return absl::StrCat(what, RunAdvice(*app));
}

int NotKnown(const std::string& what) {
  Print(stderr, "rankprobe: %s (see --help)\n", what);
  return kBadUsage;
}

// Returns a hint at a job of this directory if no collector answers and the
// user named none.
std::string HintAtPrivate(const Globals& globals, const absl::Status& status) {
  if (!absl::IsUnavailable(status) || !IsUsualCollector(globals)) return "";
  const auto found = FindPrivateCollectors(".");
  if (!found.ok() || found->served.empty()) return "";
  const std::string& path = found->served.front().dump_path;
  return absl::StrCat("; the job of ", path,
                      " has a private collector: --collector ",
                      ShellWord(path));
}

int Main(int argc, char** argv) {
  // These logs would write unescaped text to stderr, including parts of what a
  // collector sent; the status of the call has the relevant part.
  google::protobuf::SetLogHandler(nullptr);
  SilenceGrpcLog();
  if (const std::string verb = argc > 1 ? argv[1] : ""; IsPythonVerb(verb)) {
    const absl::Status status = BecomePython(verb, {argv + 2, argv + argc});
    Print(stderr, "rankprobe: %s\n", std::string(status.message()));
    return kBadUsage;
  }
  // Files are created with 0640 and directories with 0750, whatever the
  // libraries do. This is not set before `run`, because the job decides about
  // its own files.
  ::umask(0027);
  Globals globals;
  if (const char* const address = std::getenv("RANKPROBE_COLLECTOR");
      address != nullptr && *address != '\0') {
    globals.collector = address;
    globals.collector_in_environment = true;
  }
  ParsedCommand command;
  const Manual manual = CliManual();
  CLI::App app(CliDescription(), "rankprobe");
  UseHelp(manual, &app);
  app.set_version_flag("--version", absl::StrCat("rankprobe ", Version()),
                       "the version");
  app.require_subcommand(1);
  AddGlobals(&app, &globals);
  RegisterCommands(&app, &globals, &command);
  if (const auto text = WrittenHelp(argc, argv, app, manual)) {
    if (!text->ok()) {
      Print(stderr, "rankprobe: %s\n", std::string(text->status().message()));
      return kBadUsage;
    }
    Print(stdout, "%s", Lines{**text});
    return kOk;
  }
  try {
    auto arguments = WithRunFlags(app, ArgumentsOf(argc, argv));
    if (!arguments.ok())
      return NotKnown(std::string(arguments.status().message()));
    // CLI11 expects the last argument first.
    std::reverse(arguments->begin(), arguments->end());
    app.parse(*std::move(arguments));
  } catch (const CLI::Success& success) {
    // "bogus --help" asks for the help of an unknown verb.
    if (const auto unknown = UnknownWord(app)) return NotKnown(*unknown);
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    if (const auto unknown = UnknownWord(app)) return NotKnown(*unknown);
    return NotKnown(WhatIsWrong(app, error));
  }
  auto collector = ResolveCollector(globals.collector);
  if (!collector.ok()) {
    Print(stderr, "rankprobe: %s\n", std::string(collector.status().message()));
    return ExitCodeOf(collector.status());
  }
  globals.collector = *std::move(collector);
  if (const absl::Status address = CheckCollectorAddress(globals.collector);
      !address.ok()) {
    Print(stderr, "rankprobe: --collector: %s\n",
          std::string(address.message()).c_str());
    return kBadUsage;
  }
  FillFromEnvironment([](const char* name) { return std::getenv(name); },
                      &globals.files);
  auto security = ReadChannelSecurity(globals.files);
  if (!security.ok()) {
    Print(stderr, "rankprobe: %s\n",
          std::string(security.status().message()).c_str());
    return kBadUsage;
  }
  globals.security = *std::move(security);
  const SystemClock clock;
  const std::unique_ptr<FileSystem> file_system = NewPosixFileSystem();
  std::unique_ptr<LocalReader> reader;
  if (!globals.object_store.empty()) {
    auto opened =
        LocalReader::Open(globals.object_store, file_system.get(), &clock);
    if (!opened.ok()) {
      Print(stderr, "rankprobe: %s\n", std::string(opened.status().message()));
      return kBadUsage;
    }
    reader = *std::move(opened);
    globals.local_reader = reader->channel(AwayNotes());
  }
  int exit_code = kOk;
  const absl::Status status = command.run(globals, &exit_code);
  if (status.ok()) return exit_code;
  Print(stderr, "rankprobe: %s%s\n",
        Lines{absl::StrReplaceAll(std::string(status.message()),
                                  {{"\n", "\nrankprobe: "}})},
        HintAtPrivate(globals, status));
  return ExitCodeOf(status);
}

}  // namespace
}  // namespace rankprobe

int main(int argc, char** argv) {
  try {
    return rankprobe::Main(argc, argv);
  } catch (const std::exception& error) {
    // Only exceptions of libraries and exhausted memory end here.
    rankprobe::Print(stderr, "rankprobe: %s\n", error.what());
    return 5;
  }
}
