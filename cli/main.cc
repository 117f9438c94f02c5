// rankprobe: the operator's command line.
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "cli/analysis_flags.h"
#include "cli/exit_codes.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "common/host_port.h"

namespace rankprobe {

namespace {

int Main(int argc, char** argv) {
  // What is written is 0640 and 0750, whoever the libraries below trust.
  ::umask(0027);
  Globals globals;
  if (const char* const address = std::getenv("RANKPROBE_COLLECTOR");
      address != nullptr && *address != '\0') {
    globals.collector = address;
  }
  Invocation invocation;
  CLI::App app(
      "Watches and steers rankprobe runs through their collector.\n"
      "Exit codes: 0 done; 1 partly (a rank did not follow, an export has "
      "gaps); 2 bad usage or config;\n"
      "3 no collector there; 4 not found; 5 refused.",
      "rankprobe");
  app.set_version_flag("--version", "rankprobe 0.1.0");
  app.require_subcommand(1);
  AddGlobals(&app, &globals);
  AddReadVerbs(&app, &globals, &invocation);
  AddSwitchVerbs(&app, &globals, &invocation);
  AddStoreVerbs(&app, &globals, &invocation);
  AddLedgerVerb(&app, &globals, &invocation);
  AddWatchVerbs(&app, &globals, &invocation);
  AddExportVerb(&app, &globals, &invocation);
  AddAnalysisVerbs(&app, &globals, &invocation);
  AddFindVerbs(&app, &globals, &invocation);
  AddDivergenceVerb(&app, &globals, &invocation);
  AddGraphVerb(&app, &globals, &invocation);
  try {
    std::vector<std::string> arguments = ArgumentsOf(argc, argv);
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app.parse(std::move(arguments));
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    if (app.get_subcommands().empty() && !app.remaining().empty()) {
      Print(stderr, "rankprobe: there is no verb %s (see --help)\n",
            app.remaining().front().c_str());
      return kBadUsage;
    }
    Print(
        stderr, "rankprobe: %s (see --help)\n",
        absl::StrReplaceAll(std::string(error.what()), {{"\n", " "}}).c_str());
    return kBadUsage;
  }
  if (const auto address = ParseHostPort(globals.collector, /*min_port=*/1);
      !address.ok()) {
    Print(stderr, "rankprobe: --collector: %s\n",
          std::string(address.status().message()).c_str());
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
  int exit_code = kOk;
  const absl::Status status = invocation.run(globals, &exit_code);
  if (status.ok()) return exit_code;
  Print(stderr, "rankprobe: %s\n",
        Lines{absl::StrReplaceAll(std::string(status.message()),
                                  {{"\n", "\nrankprobe: "}})});
  return ExitCodeOf(status);
}

}  // namespace
}  // namespace rankprobe

int main(int argc, char** argv) {
  try {
    return rankprobe::Main(argc, argv);
  } catch (const std::exception& error) {
    // Only a library that throws, or memory that is spent, ends here.
    rankprobe::Print(stderr, "rankprobe: %s\n", error.what());
    return 5;
  }
}
