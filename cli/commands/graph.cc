// SPDX-License-Identifier: Apache-2.0
// graph_visualize.
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "analysis/graph_view/graph_visualize.h"
#include "cli/app.h"
#include "cli/client/dump_input.h"
#include "cli/client/joined_runs.h"
#include "cli/flags/analysis_flags.h"
#include "cli/output/output.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"
#include "dump_format/dump_layout.h"
#include "dump_format/json_value.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe {
namespace {

struct GraphFlags {
  std::vector<int64_t> rank_size;
  std::vector<int64_t> tensor;
  std::vector<int64_t> pipeline;
  std::vector<int64_t> virtual_pipeline;
  std::vector<std::string> order;
  std::string input_path;
  std::string target;
  std::string reference;
  std::string output;
  std::string layer_mapping;
  const CLI::Option* layers = nullptr;
  std::string file_type = "db";
  bool overflow_check = false;
  bool fuzzy = false;
  bool tensor_log = false;
  bool progress_log = false;
  bool force = false;
  LayoutFlags layout;
  std::optional<int64_t> job, reference_job;
};

// Reads the older form of the flags: {"npu_path": .., "bench_path": ..,
// "is_print_compare_log": ..}.
absl::Status ReadInputPath(FileSystem* file_system, GraphFlags* flags) {
  const std::string& path = flags->input_path;
  const auto bad = [&path](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", OneLine(what)));
  };
  // The file contains only two paths, so a larger file is a mistake.
  constexpr uint64_t kLargest = 1 << 20;
  if (!file_system->Exists(path)) return bad("does not exist");
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system->FileSize(path));
  if (size > kLargest) return bad("larger than 1 MiB");
  RP_ASSIGN_OR_RETURN(const auto file, file_system->OpenForRead(path));
  std::string text(size, '\0');
  RP_RETURN_IF_ERROR(file->Read(0, absl::MakeSpan(text)));
  JsonDocument document;
  if (const absl::Status parsed = document.Parse(std::move(text));
      !parsed.ok()) {
    return bad(parsed.message());
  }
  if (!document.root().is_object()) return bad("expected an object");
  for (const JsonMember& member : document.root().fields()) {
    if (member.key == "is_print_compare_log") {
      if (!member.value.is_bool()) return bad("is_print_compare_log: no bool");
      flags->tensor_log =
          flags->tensor_log || member.value.kind == JsonValue::Kind::kTrue;
      continue;
    }
    if (member.key != "npu_path" && member.key != "bench_path") {
      // A misspelt "bench_path" would otherwise build a graph of one side
      // without an error.
      return bad(absl::StrCat("unknown key ", member.key,
                              "; known: npu_path, bench_path, "
                              "is_print_compare_log"));
    }
    if (!member.value.is_string()) {
      return bad(absl::StrCat(member.key, ": no string"));
    }
    (member.key == "npu_path" ? flags->target : flags->reference) =
        std::string(member.value.text);
  }
  if (flags->target.empty()) return bad("npu_path is missing");
  return absl::OkStatus();
}

// Reads --rank_size and related flags: one value for each side.
absl::Status ReadLayouts(const GraphFlags& flags,
                         analysis::VisualizeOptions* options) {
  const bool any = !flags.rank_size.empty() || !flags.tensor.empty() ||
                   !flags.pipeline.empty() || !flags.virtual_pipeline.empty() ||
                   !flags.order.empty();
  if (!any) return absl::OkStatus();
  const size_t sides = flags.reference.empty() ? 1 : 2;
  const auto check = [sides](const char* name, size_t count, bool optional) {
    if (count == sides || (optional && count == 0)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": ", Counted(sides, "value"), " needed to merge the ranks of ",
        sides == 1 ? "a dump" : "two dumps", ", got ", count));
  };
  RP_RETURN_IF_ERROR(check("--rank_size", flags.rank_size.size(), false));
  RP_RETURN_IF_ERROR(check("--tp", flags.tensor.size(), false));
  RP_RETURN_IF_ERROR(check("--pp", flags.pipeline.size(), false));
  RP_RETURN_IF_ERROR(check("--vpp", flags.virtual_pipeline.size(), true));
  RP_RETURN_IF_ERROR(check("--order", flags.order.size(), true));
  for (size_t i = 0; i < sides; ++i) {
    analysis::ParallelLayout& layout =
        (i == 0 ? options->target_layout : options->reference_layout).emplace();
    layout.ranks = flags.rank_size[i];
    layout.tensor = flags.tensor[i];
    layout.pipeline = flags.pipeline[i];
    if (!flags.virtual_pipeline.empty()) {
      layout.virtual_pipeline = flags.virtual_pipeline[i];
    }
    if (!flags.order.empty()) layout.order = flags.order[i];
  }
  return absl::OkStatus();
}

absl::Status GraphVisualize(const Globals& globals, GraphFlags flags) {
  const std::unique_ptr<FileSystem> file_system = OpenInputs(flags.force);
  analysis::VisualizeOptions options;
  if (!flags.input_path.empty()) {
    RP_RETURN_IF_ERROR(ReadInputPath(file_system.get(), &flags));
  }
  if (flags.target.empty()) {
    return absl::InvalidArgumentError(
        "--target_path (-tp) or --input_path is needed");
  }
  RP_RETURN_IF_ERROR(ReadLayouts(flags, &options));
  RP_RETURN_IF_ERROR(CheckLayoutFlags(
      flags.layout, options.target_layout.has_value() ? "--rank_size" : ""));
  if (flags.layout.join() && flags.reference.empty()) {
    return absl::InvalidArgumentError(
        "--layout is for two runs: give --golden_path (-gp)");
  }
  // Like msprobe, writes a database if nothing is merged (docs/layouts.md,
  // "Parallel layouts").
  options.merged_as_dump = flags.file_type == "json";
  if (options.merged_as_dump &&
      (!options.target_layout.has_value() || !flags.reference.empty())) {
    return absl::InvalidArgumentError(
        "--file_type json is for the merged ranks of one dump: give "
        "--rank_size, --tp and --pp, and no -gp");
  }
  RP_ASSIGN_OR_RETURN(const DumpInput target,
                      DumpInput::Open(file_system.get(), globals, flags.target,
                                      {.job = flags.job}));
  RP_ASSIGN_OR_RETURN(
      const DumpInput reference,
      DumpInput::Open(file_system.get(), globals, flags.reference,
                      {.job = flags.reference_job}));
  options.target = target.path();
  options.reference = reference.path();
  // For a run, the job was chosen before the download.
  options.job = target.job();
  options.reference_job = reference.job();
  std::optional<JoinedRuns> joined;
  if (!flags.reference.empty() && !options.target_layout.has_value()) {
    RP_ASSIGN_OR_RETURN(const DumpLayout dump, target.Find());
    RP_ASSIGN_OR_RETURN(const DumpLayout other, reference.Find());
    HintAtLayout(flags.layout, dump, other);
    if (flags.layout.join()) {
      RP_ASSIGN_OR_RETURN(
          JoinedRuns made,
          JoinedRuns::Make(file_system.get(), flags.layout, dump, other,
                           globals.json ? stderr : stdout));
      joined.emplace(std::move(made));
      options.target = joined->target();
      options.reference = joined->reference();
      options.job.reset();
      options.reference_job.reset();
    }
  }
  options.overflow_check = flags.overflow_check;
  options.fuzzy = flags.fuzzy;
  if (flags.layers->count() > 0) {
    options.layer_mapping =
        flags.layer_mapping.empty() ? "auto" : flags.layer_mapping;
    if (flags.reference.empty()) {
      return absl::InvalidArgumentError(
          "--layer_mapping needs --golden_path (-gp)");
    }
  }
  const auto progress = std::make_shared<Progress>(
      Progress::StyleFor(globals.json, flags.progress_log
                                           ? Progress::Style::kLines
                                           : Progress::Style::kNone),
      "ranks");
  bool compared_tensors = false;
  if (flags.tensor_log) {
    options.tensor_log = [&](const std::string& line) {
      compared_tensors = true;
      progress->Clear();
      Print(stderr, "%s\n", line);
    };
  }
  RP_ASSIGN_OR_RETURN(const OutputDirectory output,
                      OutputDirectory::Make(file_system.get(), flags.output));
  const std::string path =
      options.merged_as_dump
          ? output.path()
          : ResultPath(
                file_system.get(), output.path(),
                absl::StrCat(flags.reference.empty() ? "build_" : "compare_",
                             TimestampText(SystemClock().Now())),
                ".vis.db");
  RP_ASSIGN_OR_RETURN(const analysis::VisualizeResult result,
                      analysis::Visualize(file_system.get(), options, path,
                                          ToFunction(progress)));
  progress->Clear();
  for (const std::string& text : result.warnings)
    Print(stderr, "rankprobe: warning: %s\n", text);
  if (flags.tensor_log && !compared_tensors) {
    Print(stderr,
          "rankprobe: warning: -tensor_log: no tensors were compared (it is "
          "for two dumps of task tensor)\n");
  }
  if (globals.json) {
    v1::GraphReport report;
    report.set_file(path);
    report.set_nodes(result.nodes);
    report.set_error(result.error);
    report.set_warning(result.warning);
    report.set_unmatched(result.unmatched);
    PrintJson(ToJson(report));
    return absl::OkStatus();
  }
  Print(stdout, "%s: %s", path, Counted(result.nodes, "node"));
  if (!flags.reference.empty()) {
    Print(stdout, ", %d error, %d warning, %d unmatched", result.error,
          result.warning, result.unmatched);
  }
  Print(stdout, "\n");
  for (const std::string& place : result.unpaired) {
    Print(stdout, "%s: not compared, the other side has no such step or rank\n",
          place.c_str());
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterGraphCommand(const Registry& to) {
  const auto [verb, flags] = to.Add<GraphFlags>(
      "graph_visualize",
      "write the graph database of one dump, or of two compared",
      GraphVisualize);
  AddTarget(verb, &flags->target,
            "a rank, step or dump directory, or run:NAME[@STEP]");
  AddReference(verb, &flags->reference, "the dump to compare with");
  verb->add_option("--input_path", flags->input_path,
                   "the older form of -tp and -gp: a compare.json with "
                   "npu_path, bench_path, is_print_compare_log")
      ->excludes("--target_path")
      ->excludes("--golden_path");
  verb->add_option("-o,--output_path", flags->output,
                   "directory for the database")
      ->required();
  flags->layers = AddLayerMapping(verb, &flags->layer_mapping);
  AddJobs(verb, &flags->job, &flags->reference_job);
  AddForce(verb, &flags->force);
  AddLayoutFlags(verb, &flags->layout);
  verb->add_flag("--overflow_check", flags->overflow_check,
                 "-oc: mark NaN, infinities and jumps");
  verb->add_flag("--fuzzy_match", flags->fuzzy,
                 "-fm: match calls in order, whatever their numbers");
  verb->add_flag("--is_print_compare_log", flags->tensor_log,
                 "-tensor_log: print a line on standard error for each tensor "
                 "that is compared (dumps of task tensor)");
  verb->add_flag("--is_print_progress_log", flags->progress_log,
                 "-progress_log: print percentages on standard error, also "
                 "when it is not a terminal");
  verb->add_option("--rank_size", flags->rank_size,
                   "merge the ranks of a parallel layout: how many there are; "
                   "one value, or two when comparing")
      ->expected(1, 2);
  verb->add_option("--tp", flags->tensor, "tensor parallel size")
      ->expected(1, 2);
  verb->add_option("--pp", flags->pipeline, "pipeline parallel size")
      ->expected(1, 2);
  verb->add_option("--vpp", flags->virtual_pipeline,
                   "virtual pipeline size [1]")
      ->expected(1, 2);
  verb->add_option("--order", flags->order,
                   "order of the dimensions [tp-cp-ep-dp-pp]")
      ->expected(1, 2);
  verb->add_option("--file_type", flags->file_type,
                   "db, or json: the merged ranks as a dump, "
                   "step{S}/rank{R} in the output directory [db]")
      ->check(CLI::IsMember({"db", "json"}));
}

}  // namespace rankprobe
