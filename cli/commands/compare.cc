// SPDX-License-Identifier: Apache-2.0
// compare.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "analysis/compare/mapping_files.h"
#include "analysis/compare/run_compare.h"
#include "analysis/root_cause/diff_analyze.h"
#include "cli/app.h"
#include "cli/client/aligned_dumps.h"
#include "cli/client/dump_input.h"
#include "cli/client/joined_runs.h"
#include "cli/flags/analysis_flags.h"
#include "cli/output/output.h"
#include "cli/output/run_card_text.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"
#include "dump_format/dump_layout.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe {
namespace {

using analysis::CompareCounts;

struct CompareFlags {
  std::string target;
  std::string reference;
  std::string output = "./output";
  std::string cell_mapping;
  std::string data_mapping;
  std::string layer_mapping;
  const CLI::Option* layers = nullptr;
  analysis::MappingFiles mappings;
  bool xlsx = false;
  bool diff_analyze = false;
  bool force = false;
  std::optional<int64_t> job, reference_job;
  AlignFlags align;
  LayoutFlags layout;
};

struct CompareResult {
  DumpPlace place;
  std::string file;
  CompareCounts counts;
};

v1::CompareReport ToMessage(const std::vector<CompareResult>& results,
                            const std::vector<std::string>& unpaired) {
  v1::CompareReport report;
  for (const CompareResult& result : results) {
    v1::CompareReport::Table& table = *report.add_results();
    table.set_step(result.place.step);
    table.set_rank(result.place.rank);
    table.set_file(result.file);
    table.set_rows(result.counts.rows);
    table.set_error(result.counts.error);
    table.set_warning(result.counts.warning);
    table.set_pass(result.counts.pass);
    table.set_unmatched(result.counts.unmatched);
  }
  report.mutable_unpaired()->Assign(unpaired.begin(), unpaired.end());
  return report;
}

void PrintResults(const Globals& globals,
                  const std::vector<CompareResult>& results,
                  const std::vector<std::string>& unpaired,
                  const std::string& hint) {
  if (PrintIf(globals.json, ToMessage(results, unpaired))) return;
  for (const CompareResult& result : results) {
    const CompareCounts& c = result.counts;
    Print(stdout,
          "%s: %s, %d error, %d warning, %d pass, %d without a partner\n",
          result.file, Counted(c.rows, "row"), c.error, c.warning, c.pass,
          c.unmatched);
  }
  for (const std::string& path : unpaired) {
    Print(stdout, "%s: not compared, the other side has no such step or rank\n",
          path.c_str());
  }
  if (!unpaired.empty()) Print(stdout, "%s.\n", hint);
}

std::string Stem(const DumpLayout& layout, const DumpPlace& place,
                 const std::string& timestamp) {
  return absl::StrCat(layout.debug ? "debug_compare_result" : "compare_result",
                      layout.kind == DumpLayout::Kind::kSteps
                          ? absl::StrCat("_step", place.step)
                          : "",
                      layout.kind == DumpLayout::Kind::kSingle
                          ? ""
                          : absl::StrCat("_", place.Name()),
                      "_", timestamp);
}

// The JSON files of --diff_analyze, written once all of them are complete.
class DiffFiles {
 public:
  DiffFiles(FileSystem* file_system, std::string timestamp)
      : file_system_(file_system), timestamp_(std::move(timestamp)) {}

  void BeginRank(const DumpLayout& layout, const DumpPlace& place,
                 const DumpReader* dump) {
    // One analyzer for all ranks of a step, because differences are followed
    // through communication.
    if (analyzer_ == nullptr) {
      analyzer_ = std::make_unique<analysis::DiffAnalyzer>(
          layout.kind == DumpLayout::Kind::kSingle ? std::vector<int64_t>()
                                                   : layout.Ranks());
    }
    place_ = absl::StrCat(layout.kind == DumpLayout::Kind::kSteps
                              ? absl::StrCat("_step", place.step)
                              : "");
    rank_ = place.Name();
    analyzer_->BeginRank(place.rank, dump);
  }
  analysis::EntryFn Sink() {
    return [this](const analysis::EntryComparison& entry, size_t index) {
      return analyzer_->AddEntry(entry, index);
    };
  }
  absl::Status EndRank(std::unique_ptr<DumpReader> dump, bool last_of_step) {
    texts_.emplace_back(
        absl::StrCat("compare_result", place_, "_", rank_, "_", timestamp_),
        analyzer_->RankJson());
    // The analyzer reads the dumps again once it knows which calls were first.
    dumps_.push_back(std::move(dump));
    if (!last_of_step) return absl::OkStatus();
    RP_ASSIGN_OR_RETURN(std::string first, analyzer_->FirstJson());
    if (!first.empty()) {
      texts_.emplace_back(absl::StrCat("diff_analyze", place_, "_", timestamp_),
                          std::move(first));
    }
    analyzer_.reset();
    dumps_.clear();
    return absl::OkStatus();
  }
  absl::Status Write(const std::string& output) {
    for (const auto& [stem, text] : texts_) {
      RP_RETURN_IF_ERROR(WriteNewFile(
          file_system_, ResultPath(file_system_, output, stem, ".json"), text));
    }
    return absl::OkStatus();
  }

 private:
  FileSystem* const file_system_;
  const std::string timestamp_;
  std::string place_;
  std::string rank_;
  std::unique_ptr<analysis::DiffAnalyzer> analyzer_;
  std::vector<std::unique_ptr<DumpReader>> dumps_;
  std::vector<std::pair<std::string, std::string>> texts_;
};

// One table for each rank in the output directory, which is created with the
// first of them. Either all of them are completed or none.
class ResultFiles : public analysis::CompareVisitor {
 public:
  ResultFiles(FileSystem* file_system, const Globals& globals,
              const CompareFlags& flags, const DumpLayout& target)
      : file_system_(file_system),
        globals_(globals),
        flags_(flags),
        target_(target),
        timestamp_(TimestampText(SystemClock().Now())),
        diffs_(file_system, timestamp_) {}

  absl::StatusOr<analysis::TableSink*> BeginRank(const DumpPlace& place,
                                                 const DumpReader& dump,
                                                 StatSet stats) override {
    if (!output_.has_value()) {
      RP_ASSIGN_OR_RETURN(OutputDirectory made,
                          OutputDirectory::Make(file_system_, flags_.output));
      output_.emplace(std::move(made));
    }
    results_.push_back({place,
                        ResultPath(file_system_, output_->path(),
                                   Stem(target_, place, timestamp_),
                                   flags_.xlsx ? ".xlsx" : ".csv"),
                        {}});
    const std::string& file = results_.back().file;
    const std::vector<std::string> header =
        analysis::CompareHeader(dump.mode(), stats, dump.has_stack());
    auto sink = flags_.xlsx ? analysis::OpenXlsx(file_system_, file, header)
                            : analysis::OpenCsv(file_system_, file, header);
    RP_RETURN_IF_ERROR(sink.status());
    sinks_.push_back(*std::move(sink));
    if (flags_.diff_analyze) diffs_.BeginRank(target_, place, &dump);
    return sinks_.back().get();
  }
  analysis::EntryFn OnEntry() override {
    return flags_.diff_analyze ? diffs_.Sink() : analysis::EntryFn();
  }
  analysis::ProgressFn OnProgress(const DumpPlace& place) override {
    return ToFunction(std::make_shared<Progress>(
        Progress::StyleFor(globals_.json, Progress::Style::kNone),
        absl::StrCat("step ", place.step, " rank ", place.rank)));
  }
  absl::Status EndRank(const DumpPlace& place, std::unique_ptr<DumpReader> dump,
                       const CompareCounts& counts,
                       bool last_of_step) override {
    results_.back().counts = counts;
    return flags_.diff_analyze ? diffs_.EndRank(std::move(dump), last_of_step)
                               : absl::OkStatus();
  }
  absl::Status Finish() {
    for (const auto& sink : sinks_) RP_RETURN_IF_ERROR(sink->Finish());
    return output_.has_value() ? diffs_.Write(output_->path())
                               : absl::OkStatus();
  }
  const std::vector<CompareResult>& results() const { return results_; }

 private:
  FileSystem* const file_system_;
  const Globals& globals_;
  const CompareFlags& flags_;
  const DumpLayout& target_;
  std::optional<OutputDirectory> output_;
  const std::string timestamp_;
  DiffFiles diffs_;
  std::vector<CompareResult> results_;
  std::vector<std::unique_ptr<analysis::TableSink>> sinks_;
};

// The table is the answer, so differences have no exit code here; that is for
// first-divergence (docs/analysis.md).
absl::Status Compare(const Globals& globals, CompareFlags& flags) {
  flags.mappings.cells = flags.cell_mapping;
  flags.mappings.data = flags.data_mapping;
  if (flags.layers->count() > 0) flags.mappings.layers = flags.layer_mapping;
  RP_RETURN_IF_ERROR(CheckLayoutFlags(
      flags.layout, !flags.align.rules.empty()          ? "--rules"
                    : flags.mappings.layers.has_value() ? "--layer_mapping"
                                                        : ""));
  const std::unique_ptr<FileSystem> file_system = OpenInputs(flags.force);
  RP_ASSIGN_OR_RETURN(const analysis::MatchOptions options,
                      ReadMappingFiles(file_system.get(), flags.mappings));
  RP_ASSIGN_OR_RETURN(const DumpInput target_input,
                      DumpInput::Open(file_system.get(), globals, flags.target,
                                      {.job = flags.job}));
  RP_ASSIGN_OR_RETURN(
      const DumpInput reference_input,
      DumpInput::Open(file_system.get(), globals, flags.reference,
                      {.job = flags.reference_job}));
  RP_ASSIGN_OR_RETURN(DumpLayout target, target_input.Find());
  RP_ASSIGN_OR_RETURN(DumpLayout reference, reference_input.Find());
  PrintNote(target);
  PrintNote(reference);
  std::FILE* const said = globals.json ? stderr : stdout;
  std::optional<AlignedDumps> aligned;
  std::optional<JoinedRuns> joined;
  if (!flags.align.rules.empty()) {
    RP_ASSIGN_OR_RETURN(
        AlignedDumps made,
        AlignedDumps::Make(file_system.get(), flags.align, target, reference));
    aligned.emplace(std::move(made));
    PrintAligned(said, aligned->report());
    RP_ASSIGN_OR_RETURN(target,
                        FindDumps(file_system.get(), aligned->target()));
    RP_ASSIGN_OR_RETURN(reference,
                        FindDumps(file_system.get(), aligned->reference()));
  } else if (flags.layout.join()) {
    RP_ASSIGN_OR_RETURN(JoinedRuns made,
                        JoinedRuns::Make(file_system.get(), flags.layout,
                                         target, reference, said));
    joined.emplace(std::move(made));
    RP_ASSIGN_OR_RETURN(target, FindDumps(file_system.get(), joined->target()));
    RP_ASSIGN_OR_RETURN(reference,
                        FindDumps(file_system.get(), joined->reference()));
  } else {
    HintAtLayout(flags.layout, target, reference);
  }
  ResultFiles files(file_system.get(), globals, flags, target);
  std::vector<std::string> unpaired;
  RP_RETURN_IF_ERROR(analysis::RunCompare(file_system.get(), target, reference,
                                          options, &files, &unpaired));
  RP_RETURN_IF_ERROR(files.Finish());
  PrintResults(globals, files.results(), unpaired,
               PairingHint(target, reference));
  if (!aligned.has_value() && !flags.layout.join() && !globals.json) {
    PrintCardExplanations(file_system.get(), target, reference,
                          analysis::Unlike::kAnything);
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterCompareCommand(const Registry& to) {
  const auto [verb, flags] = to.Add<CompareFlags>(
      "compare", "write a table of two dumps, value by value (csv or xlsx)",
      Compare);
  AddTarget(verb, &flags->target,
            "dump.json, or a rank, step or dump directory, or "
            "run:NAME[@STEP] of the archive")
      ->required();
  AddReference(verb, &flags->reference, "the same of the dump to compare with")
      ->required();
  verb->add_option("-o,--output_path", flags->output,
                   "directory for the results");
  AddForce(verb, &flags->force);
  AddJobs(verb, &flags->job, &flags->reference_job);
  AddAlignFlags(verb, &flags->align);
  AddLayoutFlags(verb, &flags->layout);
  verb->add_flag("--xlsx", flags->xlsx, "a workbook in place of csv");
  verb->add_flag("--fuzzy_match", flags->mappings.fuzzy,
                 "-fm: match calls in order, whatever their numbers");
  verb->add_flag(
      "--diff_analyze", flags->diff_analyze,
      "-da: also the first calls that differ, over all ranks (json)");
  verb->add_option("--cell_mapping", flags->cell_mapping,
                   "-cm: yaml of module names, target: reference");
  verb->add_option("--data_mapping", flags->data_mapping,
                   "-dm: yaml of row names, target: reference");
  AddApiMapping(verb, &flags->mappings.apis);
  flags->layers = AddLayerMapping(verb, &flags->layer_mapping);
}

}  // namespace rankprobe
