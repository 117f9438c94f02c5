// SPDX-License-Identifier: Apache-2.0
// run, isolate, check and doctor: a training job with the agent in it, one of its
// steps on recorded inputs or against stored statistics, and checks of the
// environment. They are written in Python, so this process executes it and keeps
// its process id, terminal and signals.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/app.h"

namespace rankprobe {

absl::Status BecomePython(const std::string& verb,
                          const std::vector<std::string>& arguments) {
  const char* const chosen = std::getenv("RANKPROBE_PYTHON");
  std::vector<std::string> words = {
      chosen == nullptr || *chosen == '\0' ? "python3" : chosen, "-m",
      // rankprobe.isolate is a function.
      absl::StrCat("rankprobe.", verb == "isolate" ? "isolating" : verb)};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp(pointers[0], pointers.data());
  return absl::InvalidArgumentError(
      absl::StrCat(words[0], ": ", std::strerror(errno), " (", verb,
                   " needs Python with the rankprobe package; "
                   "RANKPROBE_PYTHON names it)"));
}

void RegisterAttachCommand(CLI::App* app, ParsedCommand* command) {
  CLI::App* const run = app->add_subcommand(
      "run",
      "start a training job with the agent in it, without a change to it\n"
      "The job registers with the collector and is idle until it is switched "
      "on.\nOptions before --: --collector HOST:PORT, --run NAME, --config "
      "FILE, --on,\n--monitor, --every STEPS, --on-collector-missing "
      "fail|spool|ignore, --as-msprobe.");
  // Here for the help. main() calls BecomePython itself: CLI11 would take the
  // "--" and part of what stands around it.
  run->prefix_command();
  run->callback([command] {
    command->run = [](const Globals&, int*) {
      return absl::InvalidArgumentError(
          "run comes first; its options stand behind it: rankprobe run "
          "--collector HOST:PORT -- COMMAND");
    };
  });
  CLI::App* const isolate = app->add_subcommand(
      "isolate",
      "judge each module of a program on the inputs of a reference, in one "
      "step\n"
      "Errors of several modules do not add up: each gets recorded inputs and "
      "gradients, and\nits own outputs and gradients are compared. Options "
      "before --: --reference DIR,\n--step N, --rank R, --tolerance, -lm FILE, "
      "-cm FILE, --force, --json.\nrankprobe isolate --reference DIR -- "
      "COMMAND");
  isolate->prefix_command();
  isolate->callback([command] {
    command->run = [](const Globals&, int*) {
      return absl::InvalidArgumentError(
          "isolate comes first; its options stand behind it: rankprobe isolate "
          "--reference DIR -- COMMAND");
    };
  });
  CLI::App* const check = app->add_subcommand(
      "check",
      "compare one step of a program with stored statistics\n"
      "The program is started as by run, and not changed; the numbers of one "
      "step are compared\nwith a small text file, call by call. Options before "
      "the file: --update, --step N.\nrankprobe check golden.json -- COMMAND");
  check->prefix_command();
  check->callback([command] {
    command->run = [](const Globals&, int*) {
      return absl::InvalidArgumentError(
          "check comes first; its options follow it: rankprobe check "
          "golden.json -- COMMAND");
    };
  });
  CLI::App* const doctor = app->add_subcommand(
      "doctor",
      "check this environment, and say what would be recorded\n"
      "Package, PyTorch, device, config.json, dump_path, collector, ports, "
      "shared memory,\nlimits and variables; of each fault the way out. Exit "
      "code 1: there is a fault.\nOptions: --collector HOST:PORT, --config "
      "FILE, --dump-path DIR, --json.");
  doctor->prefix_command();
  doctor->callback([command] {
    command->run = [](const Globals&, int*) {
      return absl::InvalidArgumentError(
          "doctor comes first; its options follow it: rankprobe doctor "
          "--collector HOST:PORT");
    };
  });
}

}  // namespace rankprobe
