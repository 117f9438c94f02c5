// compare.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analysis/compare.h"
#include "analysis/dump_layout.h"
#include "cli/analysis_flags.h"
#include "cli/exit_codes.h"
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
  bool fuzzy = false;
  bool xlsx = false;
  bool diff_analyze = false;
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
      std::printf(
          "%s: %lld rows, %lld error, %lld warning, %lld pass, %lld without a "
          "partner\n",
          result.file.c_str(), static_cast<long long>(c.rows),
          static_cast<long long>(c.error), static_cast<long long>(c.warning),
          static_cast<long long>(c.pass), static_cast<long long>(c.unmatched));
    }
    for (const std::string& path : unpaired) {
      std::printf("%s: not compared, the other side has no such step or rank\n",
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
  std::printf("%s]}\n", out.c_str());
}

std::string Stem(const DumpLayout& layout, const DumpPlace& place,
                 const std::string& timestamp) {
  return absl::StrCat(layout.debug ? "debug_compare_result" : "compare_result",
                      layout.kind == DumpLayout::Kind::kSteps
                          ? absl::StrCat("_step", place.step)
                          : "",
                      layout.kind == DumpLayout::Kind::kSingle
                          ? ""
                          : absl::StrCat("_rank", place.rank),
                      "_", timestamp);
}

absl::Status Compare(const Globals& globals, const CompareFlags& flags) {
  const std::unique_ptr<FileSystem> file_system = NewPosixFileSystem();
  analysis::MatchOptions options;
  options.fuzzy = flags.fuzzy;
  if (!flags.cell_mapping.empty()) {
    RP_ASSIGN_OR_RETURN(options.cells,
                        analysis::ReadNameMap(flags.cell_mapping));
  }
  if (!flags.data_mapping.empty()) {
    RP_ASSIGN_OR_RETURN(options.rows,
                        analysis::ReadNameMap(flags.data_mapping));
  }
  RP_ASSIGN_OR_RETURN(const DumpLayout target,
                      analysis::FindDumps(file_system.get(), flags.target));
  RP_ASSIGN_OR_RETURN(const DumpLayout golden,
                      analysis::FindDumps(file_system.get(), flags.golden));
  std::vector<std::string> unpaired;
  RP_ASSIGN_OR_RETURN(const auto pairs,
                      analysis::PairDumps(target, golden, &unpaired));
  RP_ASSIGN_OR_RETURN(const std::string output,
                      PrepareOutput(file_system.get(), flags.output));
  const std::string timestamp = analysis::TimestampText(SystemClock().Now());
  std::vector<CompareResult> results;
  // All tables or none: they are finished together.
  std::vector<std::unique_ptr<analysis::TableSink>> sinks;
  for (const auto& [n, b] : pairs) {
    DumpReader::Options open;
    open.debug = target.debug;
    RP_ASSIGN_OR_RETURN(const auto target_dump,
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
    RP_ASSIGN_OR_RETURN(
        result.counts,
        analysis::CompareDumps(
            file_system.get(), *target_dump, *golden_dump, options, sink->get(),
            nullptr,
            MakeProgress(globals.json,
                         absl::StrCat("step ", n.step, " rank ", n.rank))));
    sinks.push_back(*std::move(sink));
    results.push_back(std::move(result));
  }
  for (const auto& sink : sinks) RP_RETURN_IF_ERROR(sink->Finish());
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
                   "-tp: dump.json, or a rank, step or dump directory")
      ->required();
  verb->add_option("--golden_path", flags->golden,
                   "-gp: the same of the dump to compare with")
      ->required();
  verb->add_option("-o,--output_path", flags->output,
                   "directory for the results");
  verb->add_flag("--xlsx", flags->xlsx, "a workbook in place of csv");
  verb->add_flag("--fuzzy_match", flags->fuzzy,
                 "-fm: match calls in order, whatever their numbers");
  verb->add_option("--cell_mapping", flags->cell_mapping,
                   "-cm: yaml of module names, target: golden");
  verb->add_option("--data_mapping", flags->data_mapping,
                   "-dm: yaml of row names, target: golden");
  verb->callback([invocation, flags] {
    invocation->run = [flags](const Globals& g, int*) {
      return Compare(g, *flags);
    };
  });
}

}  // namespace rankprobe
