// overflow_check, replicas, acc_check.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "analysis/dump_layout.h"
#include "analysis/first_nodes.h"
#include "analysis/replicas.h"
#include "cli/analysis_flags.h"
#include "cli/dump_input.h"
#include "cli/exit_codes.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "common/clock.h"
#include "common/json_text.h"
#include "common/status_macros.h"

namespace rankprobe {
namespace {

using analysis::CommLinks;
using analysis::DumpLayout;
using analysis::DumpReader;

// ---- overflow_check

struct OverflowFlags {
  std::string input;
  std::string output = "./output";
  bool force = false;
};

absl::Status OverflowCheck(const Globals& globals, const OverflowFlags& flags) {
  const std::unique_ptr<FileSystem> file_system = OpenInputs(flags.force);
  RP_ASSIGN_OR_RETURN(const DumpInput input,
                      DumpInput::Open(file_system.get(), globals, flags.input));
  RP_ASSIGN_OR_RETURN(const DumpLayout layout,
                      analysis::FindDumps(file_system.get(), input.path()));
  if (layout.kind == DumpLayout::Kind::kSteps && layout.Steps().size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(layout.path, ": has several steps; name one, such as ",
                     layout.path, "/step", layout.Steps()[0]));
  }
  std::vector<std::unique_ptr<DumpReader>> dumps;
  std::vector<analysis::RankStates> states;
  CommLinks links(layout.Ranks().size() > 1 ? layout.Ranks()
                                            : std::vector<int64_t>());
  for (const analysis::DumpPlace& place : layout.places) {
    DumpReader::Options options;
    options.construct =
        file_system->Exists(place.directory + "/construct.json");
    auto dump = DumpReader::Open(file_system.get(), place.directory, options);
    if (!dump.ok() && options.construct) {
      // An empty construct.json only costs the path in the report.
      dump = DumpReader::Open(file_system.get(), place.directory, {});
    }
    RP_RETURN_IF_ERROR(dump.status());
    RP_ASSIGN_OR_RETURN(
        analysis::RankStates rank,
        analysis::ReadOverflowStates(place.rank, **dump, &links));
    states.push_back(std::move(rank));
    dumps.push_back(*std::move(dump));
  }
  links.Match();
  const auto found = analysis::FindFirstNodes(states, links);
  if (found.empty()) {
    Print(stdout, "%s\n",
          globals.json ? "{\"found\":[]}"
                       : "No overflow was found in what was recorded.");
    return absl::OkStatus();
  }
  std::string text = "{";
  int64_t last_rank = -1;
  for (const analysis::FoundNode& node : found) {
    const DumpReader* dump = nullptr;
    for (const analysis::RankStates& rank : states) {
      if (rank.rank == node.rank) dump = rank.dump;
    }
    if (dump == nullptr) continue;
    if (node.rank == last_rank) {
      text.append(",\n  ");
    } else {
      absl::StrAppend(&text, last_rank >= 0 ? "\n ],\n" : "\n", " \"rank_",
                      node.rank, "\": [\n  ");
    }
    last_rank = node.rank;
    RP_ASSIGN_OR_RETURN(const std::string described,
                        analysis::DescribeNode(*dump, node.entry, 2));
    text.append(described);
  }
  text.append("\n ]\n}");
  RP_ASSIGN_OR_RETURN(const std::string output,
                      PrepareOutput(file_system.get(), flags.output));
  const std::string path =
      absl::StrCat(output, "/anomaly_analyze_",
                   absl::ToUnixNanos(SystemClock().Now()), ".json");
  RP_ASSIGN_OR_RETURN(
      const auto file,
      file_system->OpenForWrite(path, FileSystem::OpenMode::kCreateNew));
  RP_RETURN_IF_ERROR(file->Append(text));
  RP_RETURN_IF_ERROR(file->Close());
  std::string json;
  for (const analysis::FoundNode& node : found) {
    for (const analysis::RankStates& rank : states) {
      if (rank.rank != node.rank) continue;
      const absl::string_view name = rank.dump->name(node.entry);
      if (globals.json) {
        absl::StrAppend(&json, json.empty() ? "" : ",", "{\"rank\":", node.rank,
                        ",\"call\":", JsonString(name), "}");
      } else {
        Print(stdout, "rank %d: %s\n", node.rank, std::string(name).c_str());
      }
    }
  }
  if (globals.json) {
    PrintJson(absl::StrCat("{\"file\":", JsonString(path), ",\"found\":[", json,
                           "]}"));
  } else {
    Print(stdout, "details: %s\n", path.c_str());
  }
  return absl::OkStatus();
}

// ---- replicas

struct ReplicaFlags {
  std::string dump;
  std::string groups;
  bool gradients = false;
  bool force = false;
};

absl::StatusOr<std::vector<std::vector<int64_t>>> ParseGroups(
    const std::string& text) {
  std::vector<std::vector<int64_t>> groups;
  if (text.empty()) return groups;
  for (const absl::string_view group : absl::StrSplit(text, ';')) {
    std::vector<int64_t>& out = groups.emplace_back();
    for (const absl::string_view rank : absl::StrSplit(group, ',')) {
      int64_t number = 0;
      if (!absl::SimpleAtoi(rank, &number) || number < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("--groups ", text, ": expected ranks like 0,2;1,3"));
      }
      out.push_back(number);
    }
  }
  return groups;
}

absl::Status Replicas(const Globals& globals, const ReplicaFlags& flags,
                      int* exit_code) {
  const std::unique_ptr<FileSystem> file_system = OpenInputs(flags.force);
  analysis::ReplicaOptions options;
  RP_ASSIGN_OR_RETURN(options.groups, ParseGroups(flags.groups));
  options.gradients = flags.gradients;
  RP_ASSIGN_OR_RETURN(const DumpInput dump,
                      DumpInput::Open(file_system.get(), globals, flags.dump));
  RP_ASSIGN_OR_RETURN(
      const analysis::ReplicaReport report,
      analysis::CheckReplicas(file_system.get(), dump.path(), options));
  if (!report.differences.empty()) *exit_code = kPartial;
  std::string json;
  for (const analysis::ReplicaDifference& d : report.differences) {
    if (globals.json) {
      std::string values;
      for (const auto& [ranks, content] : d.values) {
        absl::StrAppend(&values, values.empty() ? "" : ",", "{\"ranks\":[",
                        absl::StrJoin(ranks, ","),
                        "],\"content\":", JsonString(content), "}");
      }
      absl::StrAppend(&json, json.empty() ? "" : ",", "{\"kind\":\"",
                      analysis::ReplicaKindName(d.kind), "\",\"step\":", d.step,
                      ",\"row\":", JsonString(d.row), ",\"values\":[", values,
                      "]}");
      continue;
    }
    Print(stdout, "step %d %s %s\n", d.step, analysis::ReplicaKindName(d.kind),
          d.row.c_str());
    for (const auto& [ranks, content] : d.values) {
      Print(stdout, "  rank %s: %s\n", absl::StrJoin(ranks, ",").c_str(),
            content.c_str());
    }
  }
  if (globals.json) {
    PrintJson(absl::StrCat(
        "{\"differences\":[", json, "],\"rows_compared\":",
        report.rows_compared, ",\"rows_on_one_rank\":", report.rows_on_one_rank,
        ",\"rows_without_values\":", report.rows_without_values,
        ",\"transfers_compared\":", report.transfers_compared,
        ",\"collectives_compared\":", report.collectives_compared, "}"));
    return absl::OkStatus();
  }
  Print(stdout,
        "%d differences in %d parameters and gradients, %d transfers, %d "
        "collectives; %d rows are on one rank only, %d say nothing\n",
        report.differences.size(), report.rows_compared,
        report.transfers_compared, report.collectives_compared,
        report.rows_on_one_rank, report.rows_without_values);
  return absl::OkStatus();
}

// ---- acc_check

// PyTorch's kernels are run by a Python worker, so the verb becomes it.
// The dump.json of a run of the archive, of one step and rank.
absl::StatusOr<std::string> OnlyDump(FileSystem* file_system,
                                     const std::string& name,
                                     const std::string& path) {
  RP_ASSIGN_OR_RETURN(const DumpLayout layout,
                      analysis::FindDumps(file_system, path));
  if (layout.places.size() == 1) {
    return layout.places[0].directory + "/dump.json";
  }
  if (layout.Steps().size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": has several steps; name one: ", name, "@", layout.Steps()[0]));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": has ", layout.places.size(),
                   " ranks; export it and name the dump.json of one of them"));
}

// Ends with the worker's exit status.
absl::StatusOr<int> RunWorker(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (const std::string& word : words) {
    pointers.push_back(const_cast<char*>(word.c_str()));
  }
  pointers.push_back(nullptr);
  pid_t pid = 0;
  const int fault = ::posix_spawnp(&pid, pointers[0], nullptr, nullptr,
                                   pointers.data(), environ);
  if (fault != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        words[0], ": ", std::strerror(fault),
        " (acc_check needs Python with torch; RANKPROBE_PYTHON names it)"));
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) {
      return absl::InternalError(
          absl::StrCat("waitpid: ", std::strerror(errno)));
    }
  }
  // As shells say it.
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

absl::Status AccCheck(const Globals& globals,
                      const std::vector<std::string>& arguments,
                      int* exit_code) {
  const std::unique_ptr<FileSystem> file_system = NewPosixFileSystem();
  const char* const chosen = std::getenv("RANKPROBE_PYTHON");
  std::vector<std::string> words = {
      chosen == nullptr || *chosen == '\0' ? "python3" : chosen, "-m",
      "rankprobe.acc_check"};
  std::vector<DumpInput> inputs;  // kept until the worker has ended
  for (const std::string& argument : arguments) {
    if (absl::StartsWith(argument, "run:")) {
      RP_ASSIGN_OR_RETURN(DumpInput input, DumpInput::Open(file_system.get(),
                                                           globals, argument));
      RP_ASSIGN_OR_RETURN(words.emplace_back(),
                          OnlyDump(file_system.get(), argument, input.path()));
      inputs.push_back(std::move(input));
      continue;
    }
    // Spelt as the worker spells them.
    words.push_back(argument == "--result_csv_path"   ? "-csv_path"
                    : argument == "--save_error_data" ? "-save_error_data"
                    : argument == "--config_path"     ? "-config"
                                                      : argument);
  }
  if (globals.json) words.emplace_back("--json");
  RP_ASSIGN_OR_RETURN(*exit_code, RunWorker(words));
  return absl::OkStatus();
}

}  // namespace

void AddFindVerbs(CLI::App* app, Globals* globals, Invocation* invocation) {
  CLI::App* const overflow = app->add_subcommand(
      "overflow_check",
      "where the first NaN or infinity came from, over ranks");
  AddGlobals(overflow, globals);
  auto overflow_flags = std::make_shared<OverflowFlags>();
  overflow
      ->add_option("-i,--input_path", overflow_flags->input,
                   "a step directory with its ranks")
      ->required();
  overflow->add_option("-o,--output_path", overflow_flags->output,
                       "directory for the report");
  AddForce(overflow, &overflow_flags->force);
  overflow->callback([invocation, overflow_flags] {
    invocation->run = [overflow_flags](const Globals& g, int*) {
      return OverflowCheck(g, *overflow_flags);
    };
  });

  CLI::App* const acc_check = app->add_subcommand(
      "acc_check",
      "run the API calls of a dump again, in their own precision and a higher "
      "one (needs Python with torch; -api_info takes run:NAME[@STEP] too, with "
      "--collector before the verb; --help of the worker: acc_check -- -h)");
  AddGlobals(acc_check, globals);
  acc_check->prefix_command();
  acc_check->callback([invocation, acc_check] {
    const std::vector<std::string> rest = acc_check->remaining();
    invocation->run = [rest](const Globals& g, int* code) {
      return AccCheck(g, rest, code);
    };
  });

  CLI::App* const replicas = app->add_subcommand(
      "replicas", "what should be equal across the ranks of a dump and is not");
  AddGlobals(replicas, globals);
  auto replica_flags = std::make_shared<ReplicaFlags>();
  replicas->add_option("dump", replica_flags->dump, "a step or dump directory")
      ->required();
  replicas->add_option("--groups", replica_flags->groups,
                       "ranks that hold the same parameters, like 0,2;1,3");
  replicas->add_flag("--gradients", replica_flags->gradients,
                     "compare gradients too (those recorded before they are "
                     "averaged differ by design)");
  AddForce(replicas, &replica_flags->force);
  replicas->callback([invocation, replica_flags] {
    invocation->run = [replica_flags](const Globals& g, int* code) {
      return Replicas(g, *replica_flags, code);
    };
  });
}

}  // namespace rankprobe
