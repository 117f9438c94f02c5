// SPDX-License-Identifier: Apache-2.0
// diagnose: one answer of all analyses.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "analysis/calls/call_place.h"
#include "analysis/root_cause/divergence_groups.h"
#include "analysis/root_cause/first_divergence.h"
#include "analysis/root_cause/overflow_check.h"
#include "analysis/root_cause/replicas.h"
#include "analysis/run_card/run_card.h"
#include "cli/app.h"
#include "cli/client/dump_input.h"
#include "cli/client/run_rules.h"
#include "cli/client/run_scan.h"
#include "cli/exit_codes.h"
#include "cli/flags/analysis_flags.h"
#include "cli/output/diagnosis_text.h"
#include "cli/output/output.h"
#include "cli/output/run_card_text.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_layout.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe {
namespace {

using Finding = v1::DiagnoseReport::Finding;

// Steps of a dump that are looked at, the first ones.
constexpr size_t kMostSteps = 16;
constexpr char kMonitor[] =
    "rankprobe run --run NAME --monitor --every 1 -- PROGRAM";

struct DiagnoseFlags {
  std::string input;
  std::string reference;
  int limit = 5;
  bool force = false;
};

// The smaller, the nearer to a cause at one step.
int WeightOf(const Finding& finding) {
  constexpr absl::string_view kOrder[] = {"first-divergence",
                                          "scan: changed",
                                          "rule: weight-after-forward",
                                          "rule: message-changed",
                                          "rule: all-reduce-wrong",
                                          "rule: label-shift",
                                          "rule: tokens-weigh-unequally",
                                          "rule: micro-batches-lost",
                                          "rule: gradients-not-zeroed",
                                          "rule: gradient-rounded",
                                          "rule: clip-uneven",
                                          "rule: clip-norm",
                                          "rule: replicas-never-alike",
                                          "rule: tied-weights-part",
                                          "rule: gradients-not-reduced",
                                          "rule: gradient-not-mean",
                                          "rule: buffer-parts",
                                          "scan: ranks part",
                                          "scan: not alike",
                                          "replicas",
                                          "rule: reduced-gradient-parts",
                                          "rule: update-zero",
                                          "scan: no more there",
                                          "overflow_check",
                                          "scan: non-finite",
                                          "scan: vanished",
                                          "rule: gradient-multiple",
                                          "rule: worse-than-guessing",
                                          "scan: rank moves",
                                          "scan: move"};
  int weight = 0;
  for (const absl::string_view by : kOrder) {
    if (finding.by() == by) return weight;
    ++weight;
  }
  return weight;
}

class Diagnosis {
 public:
  Diagnosis(const Globals& globals, FileSystem* file_system,
            const DiagnoseFlags& flags)
      : globals_(globals), file_system_(file_system), flags_(flags) {}

  absl::StatusOr<v1::DiagnoseReport> Run() {
    absl::string_view run = flags_.input;
    if (absl::ConsumePrefix(&run, "run:") && !absl::StrContains(run, '@')) {
      RP_RETURN_IF_ERROR(LookAtRun(std::string(run)));
    } else {
      RP_ASSIGN_OR_RETURN(
          const DumpInput input,
          DumpInput::Open(file_system_, globals_, flags_.input,
                          {.payloads = false, .rank_directory = false}));
      RP_RETURN_IF_ERROR(LookAtDump(input.path()));
      Unjudged(
          "values over steps (what moved, vanished, parted or changed "
          "between steps), and the rules on gradients and updates",
          kMonitor);
    }
    if (!flags_.reference.empty()) RP_RETURN_IF_ERROR(LookAtReference());
    std::stable_sort(
        report_.mutable_findings()->begin(), report_.mutable_findings()->end(),
        [](const Finding& a, const Finding& b) {
          const auto key = [](const Finding& f) {
            return std::make_tuple(f.sure() != "exact", f.step(), WeightOf(f));
          };
          return key(a) < key(b);
        });
    return std::move(report_);
  }

 private:
  Finding* Add(std::string by, int64_t step, int64_t rank, std::string name,
               std::string what, bool exact) {
    Finding* const finding = report_.add_findings();
    finding->set_by(std::move(by));
    finding->set_step(step);
    if (rank >= 0) finding->set_rank(rank);
    finding->set_module(analysis::ModuleText(CallOf(name)));
    finding->set_name(std::move(name));
    finding->set_what(std::move(what));
    finding->set_sure(exact ? "exact" : "likely");
    return finding;
  }
  void Healthy(std::string what) { report_.add_healthy(std::move(what)); }
  void Unjudged(std::string what, std::string record) {
    v1::DiagnoseReport::Unjudged* const unjudged = report_.add_unjudged();
    unjudged->set_what(std::move(what));
    unjudged->set_record(std::move(record));
  }

  // "Module.fc.Linear.forward.0" of the name of a value in it.
  static std::string CallOf(absl::string_view name) {
    for (const absl::string_view part :
         {".input", ".output", ".parameters", ".parameters_grad"}) {
      const size_t at = name.rfind(part);
      if (at != absl::string_view::npos && at > 0)
        return std::string(name.substr(0, at));
    }
    return std::string(name);
  }

  static bool IsExact(analysis::ScanKind kind) {
    using Kind = analysis::ScanKind;
    return !IsMove(kind) && kind != Kind::kVanished;
  }
  static bool IsMove(analysis::ScanKind kind) {
    return kind == analysis::ScanKind::kMove ||
           kind == analysis::ScanKind::kRankMoves;
  }

  absl::Status LookAtRun(const std::string& run) {
    RunScanRequest request;
    request.run = run;
    RP_ASSIGN_OR_RETURN(const RunScan scan, ScanRun(globals_, request));
    std::optional<int64_t> non_finite;
    size_t fallen = 0;
    for (const analysis::ScanFinding& f : scan.findings) {
      // Gradients and losses become small in a sound training; what dies is
      // said to have vanished.
      if (IsMove(f.kind) && f.now < f.before) {
        ++fallen;
        continue;
      }
      Add(absl::StrCat("scan: ", analysis::ScanKindText(f.kind)), f.step,
          f.rank, f.name, ScanFindingText(f), IsExact(f.kind));
      if (f.kind == analysis::ScanKind::kNonFinite && !non_finite.has_value())
        non_finite = f.step;
    }
    const std::string scope =
        absl::StrCat(scan.input.values.size(), " values over ",
                     scan.head.steps(), " recorded steps");
    if (!non_finite.has_value())
      Healthy(absl::StrCat("no NaN and no infinity but masks in ", scope));
    if (fallen > 0) {
      Healthy(absl::StrCat(fallen,
                           " moves are downwards, which is no fault by itself: "
                           "rankprobe scan --run ",
                           run));
    }
    if (scan.findings.empty())
      Healthy(
          absl::StrCat("nothing moves, vanishes, parts or changes in ", scope));
    if (!scan.groups.empty())
      Healthy(absl::StrCat("replicas were compared within ", scan.groups.size(),
                           " groups of ranks, found from equal parameters"));
    JudgeScope(scan);
    RP_RETURN_IF_ERROR(LookAtRules(request, scan));
    if (non_finite.has_value())
      RP_RETURN_IF_ERROR(LookAtStep(run, *non_finite));
    return absl::OkStatus();
  }

  void JudgeScope(const RunScan& scan) {
    const auto has = [&](absl::string_view prefix) {
      return std::any_of(scan.input.values.begin(), scan.input.values.end(),
                         [&](const analysis::ScanSeries& series) {
                           return absl::StartsWith(series.name, prefix);
                         });
    };
    if (!has("Parameter.") || !has("Update.")) {
      Unjudged("parameters, updates and replicas: no parameter is recorded",
               kMonitor);
    } else if (!scan.input.each_step || !Consecutive(scan.input.steps)) {
      Unjudged(
          "whether parameters change between steps: not every step is "
          "recorded",
          kMonitor);
    }
  }

  static bool Consecutive(const std::vector<int64_t>& steps) {
    for (size_t i = 1; i < steps.size(); ++i) {
      if (steps[i] != steps[i - 1] + 1) return false;
    }
    return true;
  }

  absl::Status LookAtRules(const RunScanRequest& request, const RunScan& scan) {
    RP_ASSIGN_OR_RETURN(RunRules rules, AskRules(globals_, request, scan));
    for (auto& [name, f] : rules.findings) {
      Add(absl::StrCat("rule: ", name), f.step, f.rank, f.name,
          std::move(f.what), f.exact);
    }
    if (!rules.kept.empty())
      Healthy(absl::StrCat("rules that are kept: ",
                           absl::StrJoin(rules.kept, ", ")));
    if (!rules.unjudged.empty()) {
      Unjudged(absl::StrCat("rules, and what they need: ",
                            absl::StrJoin(rules.unjudged, ", ")),
               kMonitor);
    }
    return absl::OkStatus();
  }

  // The call of a step that is known to be bad.
  absl::Status LookAtStep(const std::string& run, int64_t step) {
    const auto input = DumpInput::Open(
        file_system_, globals_, absl::StrCat("run:", run, "@", step),
        {.payloads = false, .rank_directory = false});
    const std::string record = absl::StrCat(
        "rankprobe run --run NAME --config FILE --on -- PROGRAM, with "
        "\"step\": "
        "[",
        step, "] and \"level\": \"mix\" in FILE");
    if (!input.ok()) {
      Unjudged(absl::StrCat("the call of step ", step, ": ",
                            input.status().message()),
               record);
      return absl::OkStatus();
    }
    const size_t before = static_cast<size_t>(report_.findings_size());
    const absl::Status status = LookAtOverflow(input->path(), step);
    if (!status.ok() ||
        static_cast<size_t>(report_.findings_size()) == before) {
      Unjudged(absl::StrCat("which call made it in step ", step,
                            ": no recorded call of it does"),
               record);
    }
    return absl::OkStatus();
  }

  absl::Status LookAtOverflow(const std::string& path, int64_t step) {
    RP_ASSIGN_OR_RETURN(const analysis::OverflowFindings findings,
                        analysis::CheckOverflow(file_system_, path));
    for (const analysis::OverflowOrigin& origin : findings.found) {
      Finding* const finding =
          Add("overflow_check", step, origin.rank, origin.call,
              origin.made.empty()
                  ? "was given a NaN or an infinity that no recorded call made"
                  : absl::StrCat("makes ", origin.made),
              true);
      finding->set_module(origin.module);
      finding->set_code_line(origin.code_line);
      for (const std::string& text : origin.inputs)
        finding->add_numbers(absl::StrCat("in  ", text));
      for (const std::string& text : origin.outputs)
        finding->add_numbers(absl::StrCat("out ", text));
    }
    return absl::OkStatus();
  }

  absl::Status LookAtDump(const std::string& path) {
    RP_ASSIGN_OR_RETURN(const DumpLayout layout, FindDumps(file_system_, path));
    std::vector<std::pair<std::string, int64_t>> steps;
    if (layout.kind == DumpLayout::Kind::kSteps) {
      for (const int64_t step : layout.Steps())
        steps.emplace_back(absl::StrCat(layout.path, "/step", step), step);
    } else {
      steps.emplace_back(path, layout.places.empty()
                                   ? 0
                                   : analysis::StepOf(layout.places.front()));
    }
    if (steps.size() > kMostSteps) {
      Unjudged(absl::StrCat("steps after ", steps[kMostSteps - 1].second,
                            " of this dump"),
               absl::StrCat("rankprobe diagnose ", steps.back().first));
      steps.resize(kMostSteps);
    }
    const size_t before = static_cast<size_t>(report_.findings_size());
    for (const auto& [directory, step] : steps) {
      RP_RETURN_IF_ERROR(LookAtOverflow(directory, step));
      if (static_cast<size_t>(report_.findings_size()) > before) break;
    }
    if (static_cast<size_t>(report_.findings_size()) == before) {
      Healthy(absl::StrCat(
          "no call of ", steps.size(), steps.size() == 1 ? " step" : " steps",
          " makes a NaN or an infinity that later calls receive"));
    }
    return layout.Ranks().size() > 1 ? LookAtReplicas(path) : absl::OkStatus();
  }

  absl::Status LookAtReplicas(const std::string& path) {
    RP_ASSIGN_OR_RETURN(const analysis::ReplicaReport replicas,
                        analysis::CheckReplicas(file_system_, path, {}));
    if (!replicas.differences.empty()) {
      const analysis::ReplicaDifference& d = replicas.differences.front();
      Finding* const finding =
          Add("replicas", d.step, -1, d.row,
              absl::StrCat(analysis::ReplicaKindName(d.kind),
                           " that should be the same on these ranks is not (",
                           replicas.differences.size(), " in all)"),
              true);
      for (const auto& [ranks, content] : d.values) {
        finding->add_numbers(
            absl::StrCat("rank ", absl::StrJoin(ranks, ","), ": ", content));
      }
    }
    if (replicas.rows_of_shards > 0) {
      Unjudged(absl::StrCat(replicas.rows_of_shards,
                            " parameters that are shards by their numbers"),
               absl::StrCat("rankprobe replicas ", flags_.input,
                            " --groups 0,1 (if ranks 0 and 1 hold the same)"));
    }
    if (replicas.differences.empty()) {
      Healthy(absl::StrCat(
          replicas.rows_compared, " parameters are the same on the ranks, ",
          replicas.transfers_compared, " transfers and ",
          replicas.collectives_compared, " collectives agree"));
    }
    return absl::OkStatus();
  }

  static std::string GroundOf(const analysis::Divergence& d) {
    if (d.is_argument) return "an argument that the code gives";
    if (d.from_outside) return "it came in from outside";
    if (d.inputs_infinite > 0) {
      return absl::StrCat("its inputs match, but for ", d.inputs_infinite,
                          d.inputs_infinite == 1 ? " that holds" : " that hold",
                          " an infinity (a mask), which statistics do not "
                          "distinguish from another");
    }
    return "its inputs match";
  }

  absl::Status LookAtReference() {
    RP_ASSIGN_OR_RETURN(const DumpInput target,
                        DumpInput::Open(file_system_, globals_, flags_.input));
    RP_ASSIGN_OR_RETURN(
        const DumpInput reference,
        DumpInput::Open(file_system_, globals_, flags_.reference));
    RP_ASSIGN_OR_RETURN(const analysis::DivergenceReport divergence,
                        analysis::FindDivergence(file_system_, target.path(),
                                                 reference.path(), {}, {}));
    const analysis::DivergenceGroups groups =
        analysis::GroupOrigins(divergence.origins);
    bool is_first = true;
    for (const auto& group : groups.groups) {
      const analysis::Divergence& d = divergence.origins[group.origin];
      Finding* const finding =
          Add("first-divergence", d.step, d.rank, d.call,
              absl::StrCat(
                  d.row, " differs from the reference; ", GroundOf(d),
                  group.other_ranks.empty()
                      ? ""
                      : absl::StrCat("; the same on rank ",
                                     absl::StrJoin(group.other_ranks, ","))),
              d.unmade_inputs.empty());
      finding->set_module(d.module);
      finding->set_code_line(d.code_line);
      finding->add_numbers(absl::StrCat("target    ", d.target_values));
      finding->add_numbers(absl::StrCat("reference ", d.reference_values));
      if (!std::exchange(is_first, false)) continue;
      for (const std::string& line : ExplanationsOf(
               file_system_, target.path(), reference.path(), divergence))
        finding->add_numbers(absl::StrCat("the runs differ in ", line));
      const std::string followed = analysis::FollowedText(groups);
      if (!followed.empty()) finding->add_numbers(followed);
    }
    if (divergence.origins.empty()) {
      Healthy(absl::StrCat("no difference from the reference in the ",
                           divergence.calls_compared,
                           " calls that both sides recorded"));
    }
    if (divergence.unseen.Any()) {
      Unjudged("calls and values of one side only, or without numbers",
               absl::StrCat("rankprobe first-divergence ", flags_.input, " ",
                            flags_.reference, " (it lists them)"));
    }
    return absl::OkStatus();
  }

  const Globals& globals_;
  FileSystem* const file_system_;
  const DiagnoseFlags& flags_;
  v1::DiagnoseReport report_;
};

absl::Status Diagnose(const Globals& globals, const DiagnoseFlags& flags,
                      int* exit_code) {
  const std::unique_ptr<FileSystem> file_system = OpenInputs(flags.force);
  RP_ASSIGN_OR_RETURN(const v1::DiagnoseReport report,
                      Diagnosis(globals, file_system.get(), flags).Run());
  // What is only far off the usual is told, and is no fault by itself.
  if (!report.findings().empty() && report.findings(0).sure() == "exact")
    *exit_code = kPartial;
  if (globals.json) {
    PrintJson(ToJson(report));
  } else {
    PrintDiagnosis(report, flags.limit);
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterDiagnoseCommand(CLI::App* app, Globals* globals,
                             ParsedCommand* command) {
  CLI::App* const verb = app->add_subcommand(
      "diagnose",

      "give one ranked answer: what went wrong first, where, how sure, "
      "and what was not recorded");
  AddGlobals(verb, globals);
  auto flags = std::make_shared<DiagnoseFlags>();
  AddInput(verb, "input", &flags->input,
           "run:NAME, run:NAME@STEP, or a step or dump directory")
      ->required();
  verb->add_option("--reference,reference", flags->reference,
                   "a sound run or dump to compare with");
  verb->add_option("--limit", flags->limit,
                   "maximum number of findings; 0: all; default 5")
      ->check(CLI::NonNegativeNumber);
  AddForce(verb, &flags->force);
  verb->callback([command, flags] {
    command->run = [flags](const Globals& g, int* code) {
      return Diagnose(g, *flags, code);
    };
  });
}

}  // namespace rankprobe
