// SPDX-License-Identifier: Apache-2.0
// Commands that are written in Python: a training job with the agent in it, one
// of its steps on recorded inputs or against stored statistics, tables of many
// ranks, checks of the environment, and delivery of events and answers to other
// programs. This process executes Python and keeps its process id, terminal and
// signals.
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
namespace {

struct PythonVerb {
  const char* name;
  // The module in the package; rankprobe.isolate itself is a function.
  const char* module;
  const char* description;
  // Follows the name.
  const char* usage;
};

constexpr PythonVerb kPythonVerbs[] = {
    {"run", "rankprobe.run",
     "start a training job with the agent in it, without a change to it\n"
     "The job registers with the collector and is idle until it is switched "
     "on.\nOptions before --: --collector HOST:PORT, --run NAME, --config "
     "FILE, --on,\n--monitor, --every STEPS, --on-collector-missing "
     "fail|spool|ignore, --as-msprobe.",
     "--collector HOST:PORT -- COMMAND"},
    {"isolate", "rankprobe.isolating",
     "judge each module of a program on the inputs of a reference, in one "
     "step\n"
     "Errors of several modules do not add up: each gets recorded inputs and "
     "gradients, and\nits own outputs and gradients are compared. Options "
     "before --: --reference DIR,\n--step N, --rank R, --tolerance, -lm FILE, "
     "-cm FILE, --force, --json.\nrankprobe isolate --reference DIR -- "
     "COMMAND",
     "--reference DIR -- COMMAND"},
    {"check", "rankprobe.check",
     "compare one step of a program with stored statistics\n"
     "The program is started as by run, and not changed; the numbers of one "
     "step are compared\nwith a small text file, call by call. Options before "
     "the file: --update, --step N, --json.\nrankprobe check golden.json -- "
     "COMMAND",
     "golden.json -- COMMAND"},
    {"merge_result", "rankprobe.merge_result",
     "merge the compare tables of many ranks into one workbook\n"
     "A sheet for each index, a column for each rank. Options: -o DIR, "
     "-config YAML (api:\n[NAME ..], compare_index: [COLUMN ..]), --csv, "
     "--force, --json.",
     "TABLES -o DIR -config YAML"},
    {"doctor", "rankprobe.doctor",
     "check this environment, and say what would be recorded\n"
     "Package, PyTorch, device, config.json, dump_path, collector, ports, "
     "shared memory,\nlimits and variables; a remedy for each fault. Exit "
     "code 1: there is a fault.\nOptions: --collector HOST:PORT, --config "
     "FILE, --dump-path DIR, --json.",
     "--collector HOST:PORT"},
    {"sink", "rankprobe.sink",
     "send events, and the answers of diagnose, to other programs\n"
     "A webhook (also of Slack and Teams), Weights & Biases, MLflow, "
     "TensorBoard, or\nOpenTelemetry. Each event is sent at least once. "
     "Options: --collector HOST:PORT,\n--run NAME, --position FILE, --once, "
     "--answers, --answer INPUT, --directory DIR.",
     "KIND --collector HOST:PORT"},
    {"mcp", "rankprobe.mcp",
     "serve the commands that find what is wrong to an agent, by MCP\n"
     "The agent starts it and speaks with it on standard input and output. It "
     "only reads,\nunless --allow-enable and an operator's token are given. "
     "Options: --collector\nHOST:PORT, --allow-enable, --token-file FILE.",
     "--collector HOST:PORT"},
};

const PythonVerb* FindPythonVerb(const std::string& verb) {
  for (const PythonVerb& known : kPythonVerbs) {
    if (verb == known.name) return &known;
  }
  return nullptr;
}

}  // namespace

bool IsPythonVerb(const std::string& verb) {
  return FindPythonVerb(verb) != nullptr;
}

absl::Status BecomePython(const std::string& verb,
                          const std::vector<std::string>& arguments) {
  const PythonVerb* const python = FindPythonVerb(verb);
  if (python == nullptr)
    return absl::InvalidArgumentError(absl::StrCat(verb, " is no such verb"));
  const char* const chosen = std::getenv("RANKPROBE_PYTHON");
  std::vector<std::string> words = {
      chosen == nullptr || *chosen == '\0' ? "python3" : chosen, "-m",
      python->module};
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

void RegisterAttachCommand(const Registry& to) {
  for (const PythonVerb& verb : kPythonVerbs) {
    // Here for the help. main() calls BecomePython itself: CLI11 would take a
    // "--" and part of what stands around it.
    const auto [known, own] = to.AddLocal<const PythonVerb*>(
        verb.name, verb.description,
        [](const Globals&, const PythonVerb* python) {
          return absl::InvalidArgumentError(absl::StrCat(
              python->name,
              " must come first and its options after it: rankprobe ",
              python->name, " ", python->usage));
        });
    *own = &verb;
    known->prefix_command();
  }
}

}  // namespace rankprobe
