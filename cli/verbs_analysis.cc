// compare.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analysis/compare.h"
#include "analysis/diff_analyze.h"
#include "analysis/dump_layout.h"
#include "analysis/mapping_files.h"
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

using analysis::CompareCounts;
using analysis::DumpLayout;
using analysis::DumpPlace;
using analysis::DumpReader;

struct CompareFlags {
  std::string target;
  std::string golden;
  std::string output = "./output";
  std::string cell_mapping;
  std::string data_mapping;
  std::string layer_mapping;
  analysis::MappingFiles mappings;
  bool xlsx = false;
  bool diff_analyze = false;
  bool force = false;
};

struct CompareResult {
  DumpPlace place;
  std::string file;
  CompareCounts counts;
};

void PrintResults(const Globals& globals,
                  const std::vector<CompareResult>& results,
                  const std::vector<std::string>& unpaired) {
  if (!globals.json) {
    for (const CompareResult& result : results) {
      const CompareCounts& c = result.counts;
      Print(stdout,
            "%s: %d rows, %d error, %d warning, %d pass, %d without a "
            "partner\n",
            result.file.c_str(), c.rows, c.error, c.warning, c.pass,
            c.unmatched);
    }
    for (const std::string& path : unpaired) {
      Print(stdout,
            "%s: not compared, the other side has no such step or rank\n",
            path.c_str());
    }
    return;
  }
  std::string out = "{\"results\":[";
  for (size_t i = 0; i < results.size(); ++i) {
    const CompareResult& r = results[i];
    absl::StrAppend(&out, i > 0 ? "," : "", "{\"step\":", r.place.step,
                    ",\"rank\":", r.place.rank, ",\"file\":");
    AppendJsonString(r.file, &out);
    absl::StrAppend(
        &out, ",\"rows\":", r.counts.rows, ",\"error\":", r.counts.error,
        ",\"warning\":", r.counts.warning, ",\"pass\":", r.counts.pass,
        ",\"unmatched\":", r.counts.unmatched, "}");
  }
  out.append("],\"unpaired\":[");
  for (size_t i = 0; i < unpaired.size(); ++i) {
    if (i > 0) out.push_back(',');
    AppendJsonString(unpaired[i], &out);
  }
  out.append("]}");
  PrintJson(out);
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

// The JSON files of --diff_analyze, written when all of them are there.
class DiffFiles {
 public:
  DiffFiles(FileSystem* file_system, std::string output, std::string timestamp)
      : file_system_(file_system),
        output_(std::move(output)),
        timestamp_(std::move(timestamp)) {}

  void BeginRank(const DumpLayout& layout, const DumpPlace& place,
                 const DumpReader* dump) {
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
  absl::Status Write() {
    for (const auto& [stem, text] : texts_) {
      const std::string path = ResultPath(file_system_, output_, stem, ".json");
      RP_ASSIGN_OR_RETURN(
          const auto file,
          file_system_->OpenForWrite(path, FileSystem::OpenMode::kCreateNew));
      RP_RETURN_IF_ERROR(file->Append(text));
      RP_RETURN_IF_ERROR(file->Close());
    }
    return absl::OkStatus();
  }

 private:
  FileSystem* const file_system_;
  const std::string output_;
  const std::string timestamp_;
  std::string place_;
  std::string rank_;
  std::unique_ptr<analysis::DiffAnalyzer> analyzer_;
  std::vector<std::unique_ptr<DumpReader>> dumps_;
  std::vector<std::pair<std::string, std::string>> texts_;
};

absl::Status Compare(const Globals& globals, const CompareFlags& flags) {
  const std::unique_ptr<FileSystem> file_system = OpenInputs(flags.force);
  std::vector<std::string> warnings;
  RP_ASSIGN_OR_RETURN(
      const analysis::MatchOptions options,
      analysis::ReadMappings(file_system.get(), flags.mappings, &warnings));
  for (const std::string& text : warnings)
    Print(stderr, "rankprobe: warning: %s\n", text);
  RP_ASSIGN_OR_RETURN(
      const DumpInput target_input,
      DumpInput::Open(file_system.get(), globals, flags.target));
  RP_ASSIGN_OR_RETURN(
      const DumpInput golden_input,
      DumpInput::Open(file_system.get(), globals, flags.golden));
  RP_ASSIGN_OR_RETURN(
      const DumpLayout target,
      analysis::FindDumps(file_system.get(), target_input.path()));
  RP_ASSIGN_OR_RETURN(
      const DumpLayout golden,
      analysis::FindDumps(file_system.get(), golden_input.path()));
  RP_RETURN_IF_ERROR(analysis::CheckMappings(target, options));
  std::vector<std::string> unpaired;
  RP_ASSIGN_OR_RETURN(const auto pairs,
                      analysis::PairDumps(target, golden, &unpaired));
  RP_ASSIGN_OR_RETURN(const std::string output,
                      PrepareOutput(file_system.get(), flags.output));
  const std::string timestamp = analysis::TimestampText(SystemClock().Now());
  std::vector<CompareResult> results;
  // All tables or none: they are finished together.
  std::vector<std::unique_ptr<analysis::TableSink>> sinks;
  DiffFiles diffs(file_system.get(), output, timestamp);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& [n, b] = pairs[i];
    DumpReader::Options open;
    open.debug = target.debug;
    open.construct = options.layers.has_value();
    RP_ASSIGN_OR_RETURN(auto target_dump,
                        DumpReader::Open(file_system.get(), n.directory, open));
    RP_ASSIGN_OR_RETURN(const auto golden_dump,
                        DumpReader::Open(file_system.get(), b.directory, open));
    RP_RETURN_IF_ERROR(analysis::CheckComparable(*target_dump, *golden_dump));
    CompareResult result;
    result.place = n;
    result.file =
        ResultPath(file_system.get(), output, Stem(target, n, timestamp),
                   flags.xlsx ? ".xlsx" : ".csv");
    const std::vector<std::string> header =
        analysis::CompareHeader(target_dump->mode(), target_dump->has_stack());
    auto sink = flags.xlsx
                    ? analysis::OpenXlsx(file_system.get(), result.file, header)
                    : analysis::OpenCsv(file_system.get(), result.file, header);
    RP_RETURN_IF_ERROR(sink.status());
    if (flags.diff_analyze) diffs.BeginRank(target, n, target_dump.get());
    RP_ASSIGN_OR_RETURN(
        result.counts,
        analysis::CompareDumps(
            file_system.get(), *target_dump, *golden_dump, options, sink->get(),
            flags.diff_analyze ? diffs.Sink() : analysis::EntryFn(),
            MakeProgress(globals.json,
                         absl::StrCat("step ", n.step, " rank ", n.rank))));
    sinks.push_back(*std::move(sink));
    results.push_back(std::move(result));
    if (flags.diff_analyze) {
      RP_RETURN_IF_ERROR(diffs.EndRank(
          std::move(target_dump),
          i + 1 == pairs.size() || pairs[i + 1].first.step != n.step));
    }
  }
  for (const auto& sink : sinks) RP_RETURN_IF_ERROR(sink->Finish());
  RP_RETURN_IF_ERROR(diffs.Write());
  PrintResults(globals, results, unpaired);
  return absl::OkStatus();
}

}  // namespace

void AddAnalysisVerbs(CLI::App* app, Globals* globals, Invocation* invocation) {
  CLI::App* const verb = app->add_subcommand(
      "compare", "a table of two dumps, value by value (csv or xlsx)");
  AddGlobals(verb, globals);
  auto flags = std::make_shared<CompareFlags>();
  verb->add_option("--target_path", flags->target,
                   "-tp: dump.json, or a rank, step or dump directory, or "
                   "run:NAME[@STEP] of the archive")
      ->required();
  verb->add_option("--golden_path", flags->golden,
                   "-gp: the same of the dump to compare with")
      ->required();
  verb->add_option("-o,--output_path", flags->output,
                   "directory for the results");
  AddForce(verb, &flags->force);
  verb->add_flag("--xlsx", flags->xlsx, "a workbook in place of csv");
  verb->add_flag("--fuzzy_match", flags->mappings.fuzzy,
                 "-fm: match calls in order, whatever their numbers");
  verb->add_flag(
      "--diff_analyze", flags->diff_analyze,
      "-da: also the first calls that differ, over all ranks (json)");
  verb->add_option("--cell_mapping", flags->cell_mapping,
                   "-cm: yaml of module names, target: golden");
  verb->add_option("--data_mapping", flags->data_mapping,
                   "-dm: yaml of row names, target: golden");
  verb->add_option("--api_mapping", flags->mappings.apis,
                   "-am: yaml of API names, target: golden");
  CLI::Option* const layers =
      verb->add_option("--layer_mapping", flags->layer_mapping,
                       "-lm [FILE]: match layers of other names")
          ->expected(0, 1);
  verb->callback([invocation, flags, layers] {
    flags->mappings.cells = flags->cell_mapping;
    flags->mappings.data = flags->data_mapping;
    if (layers->count() > 0) flags->mappings.layers = flags->layer_mapping;
    invocation->run = [flags](const Globals& g, int*) {
      return Compare(g, *flags);
    };
  });
}

}  // namespace rankprobe
