// SPDX-License-Identifier: Apache-2.0
// export: the dump layout, on this machine or on the collector's.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/app.h"
#include "cli/client/client.h"
#include "cli/commands/export_values.h"
#include "cli/exit_codes.h"
#include "cli/flags/analysis_flags.h"
#include "cli/flags/choice.h"
#include "cli/flags/ranges.h"
#include "cli/output/export_receiver.h"
#include "cli/output/output.h"
#include "cli/output/tar_receiver.h"
#include "common/base/status_macros.h"
#include "common/io/confined_file_system.h"
#include "common/text/counted.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

constexpr char kDumpFormat[] = "msprobe";
constexpr char kBoardFormat[] = "tensorboard";

struct ExportFlags {
  std::string run, steps, ranks, request, output, server_directory, tar;
  bool link = false, resume = false, unchecked = false;
  // Options for formats with one row for each value.
  std::string format = kDumpFormat, match, payloads;
  v1::GridValues of = v1::GRID_VALUES_ALL;
};

absl::Status ExportTable(const Globals& globals, const ExportFlags& flags,
                         int* exit_code) {
  if (!flags.server_directory.empty() || !flags.tar.empty() || flags.link ||
      flags.resume || !flags.request.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--format ", flags.format,
                     " writes to -o; --request, --server-dir, --tar, --link "
                     "and --resume are of msprobe"));
  }
  if (!flags.payloads.empty() && flags.format != kBoardFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("--payloads requires --format ", kBoardFormat));
  }
  ValueExport wanted;
  wanted.format = flags.format;
  wanted.output = flags.output;
  wanted.payloads = flags.payloads;
  wanted.request.set_run(flags.run);
  wanted.request.set_match(flags.match);
  wanted.request.set_values(flags.of);
  RP_ASSIGN_OR_RETURN(const std::vector<int64_t> steps,
                      ParseRanges("--steps", flags.steps));
  RP_ASSIGN_OR_RETURN(const std::vector<int64_t> ranks,
                      ParseRanges("--ranks", flags.ranks));
  wanted.request.mutable_steps()->Assign(steps.begin(), steps.end());
  wanted.request.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  return ExportValues(globals, wanted, exit_code);
}

// Reports data that is not a gap but may surprise a reader: it was chosen among
// several processes, or includes other requests.
void SayWhatElse(const v1::ExportDone& done, const std::string& run) {
  if (done.conflicts() > 0) {
    Print(stderr,
          "the export leaves out %s of a rank that another process recorded, "
          "too: see conflicts in manifest.json; `rankprobe status --run %s` "
          "names the jobs\n",
          Counted(done.conflicts(), "step"), run);
  }
  for (const std::string& place : done.moved_to()) {
    Print(stderr, "files of another run were moved to %s/%s\n",
          VisibleText(done.directory()), VisibleText(place));
  }
  if (done.whole_batch_steps() > 0) {
    Print(stderr,
          "in %d of %s with request %s the statistics are those of the "
          "complete batch: record its rows (rankprobe enable --request), or "
          "tensors\n",
          done.whole_batch_steps(), Counted(done.request_steps(), "step"),
          VisibleText(done.request()));
  }
  if (done.whole_batch_tensors() > 0) {
    Print(stderr,
          "the export has the complete batch of %s, whose bytes are not in the "
          "archive\n",
          Counted(done.whole_batch_tensors(), "tensor"));
  }
}

void SayWhere(std::FILE* out, const v1::ExportDone& done,
              const std::string& tar, bool to_stdout) {
  // The manifest is one file.
  if (done.files() <= 1) {
    Print(out, "no step is recorded: %s contains only manifest.json\n",
          done.directory());
    return;
  }
  const std::string place =
      to_stdout ? "step*/ of the tar"
                : absl::StrCat(tar.empty() ? "" : "step*/ of ",
                               done.directory(), tar.empty() ? "/step*/" : "");
  Print(out, "dump.json is at %s (%s, %s)\n", place,
        Counted(done.files(), "file"), HumanBytes(done.bytes()));
}

absl::Status Export(const Globals& globals, const ExportFlags& flags,
                    int* exit_code) {
  if (flags.format != kDumpFormat)
    return ExportTable(globals, flags, exit_code);
  if (!flags.match.empty() || flags.of != v1::GRID_VALUES_ALL ||
      !flags.payloads.empty()) {
    return absl::InvalidArgumentError(
        "--match, --of and --payloads need another --format; a dump is always "
        "complete");
  }
  if (int{flags.output.empty()} + int{flags.server_directory.empty()} +
          int{flags.tar.empty()} !=
      2) {
    return absl::InvalidArgumentError(
        "give one of -o DIR (this machine), --server-dir DIR (the "
        "collector's), --tar FILE (- for standard output)");
  }
  if (flags.resume && !flags.tar.empty())
    return absl::InvalidArgumentError("--resume cannot continue a --tar");
  const bool to_stdout = flags.tar == "-";
  if (to_stdout && globals.json)
    return absl::InvalidArgumentError(
        "--tar - and --json cannot both use standard output");
  v1::ExportRequest request;
  request.set_run(flags.run);
  RP_ASSIGN_OR_RETURN(const std::vector<int64_t> steps,
                      ParseRanges("--steps", flags.steps));
  RP_ASSIGN_OR_RETURN(const std::vector<int64_t> ranks,
                      ParseRanges("--ranks", flags.ranks));
  request.mutable_steps()->Assign(steps.begin(), steps.end());
  request.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  request.set_request(flags.request);
  request.set_server_directory(flags.server_directory);
  request.set_link(flags.link);
  request.set_resume(flags.resume);
  request.set_unchecked(flags.unchecked);
  request.set_takes_files(true);

  const std::unique_ptr<FileSystem> file_system = NewPosixFileSystem();
  // No link below the directory is followed, including one that is created
  // meanwhile.
  std::optional<OutputDirectory> output;
  std::unique_ptr<FileSystem> confined;
  std::unique_ptr<ExportFiles> files;
  if (!flags.output.empty()) {
    RP_ASSIGN_OR_RETURN(OutputDirectory made,
                        OutputDirectory::Make(file_system.get(), flags.output));
    output.emplace(std::move(made));
    RP_ASSIGN_OR_RETURN(confined, NewConfinedFileSystem({output->path()}));
    RP_ASSIGN_OR_RETURN(
        files,
        ExportFiles::Open(confined.get(), output->path(),
                          flags.resume ? StagedTree::Leftovers::kReuse
                                       : StagedTree::Leftovers::kDelete));
  }
  std::unique_ptr<TarFiles> tar;
  if (!flags.tar.empty()) {
    if (to_stdout && ::isatty(STDOUT_FILENO) != 0)
      return absl::InvalidArgumentError(
          "a tar cannot be written to a terminal");
    RP_ASSIGN_OR_RETURN(tar, TarFiles::Open(flags.tar));
  }
  const Client client(globals);
  Progress progress(Progress::StyleFor(globals.json, Progress::Style::kLines),
                    "export");
  const auto show = [&progress](const v1::ExportEvent& event) {
    if (event.has_progress()) {
      progress.Show(event.progress().files_done(),
                    event.progress().files_total(),
                    HumanBytes(event.progress().bytes_done()),
                    event.progress().current());
    }
    return absl::OkStatus();
  };
  const ReceivedExport received =
      files != nullptr
          ? files->Receive(client, request, show)
          : ReceiveExport(client, request, [&](const v1::ExportEvent& event) {
              RP_RETURN_IF_ERROR(show(event));
              return tar == nullptr ? absl::OkStatus() : tar->OnEvent(event);
            });
  progress.Clear();
  if (files != nullptr && received.IsWorthKeeping()) {
    files->Keep();
    Print(stderr, "what was received is kept; --resume continues the export\n");
  }
  RP_RETURN_IF_ERROR(received.status());
  v1::ExportDone done = *received.done;
  if (!flags.request.empty() && done.request().empty()) {
    return absl::UnimplementedError(
        "the collector is older and does not know --request; nothing is kept");
  }
  if (tar != nullptr) {
    RP_RETURN_IF_ERROR(tar->Finish());
    done.set_directory(flags.tar);
  }
  if (files != nullptr) {
    RP_RETURN_IF_ERROR(files->Finish(flags.run));
    done.set_directory(flags.output);
    for (const std::string& place : files->moved_to()) done.add_moved_to(place);
  }
  SayWhatElse(done, flags.run);
  if (done.gaps() > 0 || done.incomplete_steps() > 0) *exit_code = kPartial;
  if (PrintIf(globals.json, done)) return absl::OkStatus();
  std::FILE* const out = to_stdout ? stderr : stdout;
  SayWhere(out, done, flags.tar, to_stdout);
  if (*exit_code == kPartial) {
    Print(out, "%s and %s: see manifest.json there\n",
          Counted(done.gaps(), "gap"),
          Counted(done.incomplete_steps(), "incomplete step"));
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterExportCommand(const Registry& to) {
  const auto [verb, flags] =
      to.Add<ExportFlags>("export",
                          "write a run as a dump (the msprobe layout), or its "
                          "statistics as a table",
                          Export);
  verb->add_option("--run", flags->run, "the run")->required();
  verb->add_option("--steps", flags->steps, "like 0,4-6; all if left out")
      ->check(WhyNoRanges);
  verb->add_option("--ranks", flags->ranks, "like 0,2-3; all if left out")
      ->check(WhyNoRanges);
  std::vector<std::string> formats = ValueFormats();
  formats.insert(formats.begin(), kDumpFormat);
  verb->add_option(
          "--format", flags->format,
          "the dump layout (msprobe, the default) or statistics, a row a "
          "value: a parquet file, tensorboard's event files, a trend.db, or "
          "columns to -o -")
      ->check(CLI::IsMember(formats));
  verb->add_option("--match", flags->match,
                   "rows of these names only: a part of them, or a pattern "
                   "with * and ?");
  verb->add_option("--of", flags->of, "rows of outputs, inputs or all")
      ->transform(OneOf<v1::GridValues>({{"outputs", v1::GRID_VALUES_OUTPUTS},
                                         {"inputs", v1::GRID_VALUES_INPUTS},
                                         {"all", v1::GRID_VALUES_ALL}}));
  verb->add_option("--payloads", flags->payloads,
                   "for tensorboard: a directory with an exported dump of the "
                   "run; its tensors become histograms");
  verb->add_option("--request", flags->request,
                   "for a server: only steps with this request, and only its "
                   "rows of the tensors")
      ->check([](const std::string& id) -> std::string {
        return id.empty() ? "an empty id; without --request all are exported"
                          : "";
      });
  verb->add_option("-o,--output", flags->output,
                   "directory on this machine; of a table its file");
  verb->add_option("--server-dir", flags->server_directory,
                   "directory on the collector's machine");
  verb->add_option("--tar", flags->tar,
                   "a tar file on this machine, - for standard output");
  verb->add_flag("--link", flags->link,
                 "equal tensors become one file with several names (hard "
                 "links): do not edit such files in place");
  verb->add_flag("--resume", flags->resume,
                 "continue an interrupted export to the same directory");
  verb->add_flag("--unchecked", flags->unchecked,
                 "do not check tensors against the digests in their records "
                 "while writing them");
}

}  // namespace rankprobe
