// SPDX-License-Identifier: Apache-2.0
// verify, delete, backup: maintenance of the archive.
#include <cstdio>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "cli/app.h"
#include "cli/client/answer_stream.h"
#include "cli/exit_codes.h"
#include "cli/flags/ranges.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"

namespace rankprobe {
namespace {

// Limit for the work itself; --timeout applies only to the connection.
constexpr double kLongestSeconds = 24 * 3600;

struct VerifyFlags {
  bool read_data = false;
  std::string subset;
};

absl::Status Verify(const Globals& globals, const VerifyFlags& flags,
                    int* exit_code) {
  v1::VerifyRequest request;
  request.set_read_data(flags.read_data);
  if (!flags.subset.empty()) {
    uint32_t percent = 0;
    if (!flags.read_data ||
        !absl::SimpleAtoi(absl::StripSuffix(flags.subset, "%"), &percent) ||
        percent < 1 || percent > 100) {
      return absl::InvalidArgumentError(
          "--subset is a percentage 1..100 and needs --read-data");
    }
    request.set_subset_percent(percent);
  }
  const Client client(globals);
  AnswerStream<v1::VerifyReport> reader(client, kLongestSeconds,
                                        &ArchiveStub::Verify, request);
  v1::VerifyReport report;
  // Reports arrive during the work; the last one is the result.
  while (reader.Read(&report)) {
  }
  RP_RETURN_IF_ERROR(reader.Finish());
  // A payload that never arrived is not a fault of the archive, but it sets the
  // exit code.
  const bool sound = report.fault_count() == 0 && report.finished();
  if (!sound || report.missing_payloads() > 0) *exit_code = kPartial;
  if (PrintIf(globals.json, report)) return absl::OkStatus();
  for (const std::string& fault : report.faults())
    Print(stdout, "fault: %s\n", fault.c_str());
  if (report.objects() > 0) {
    Print(stdout, "%s of the store (%s read), %s: %s\n",
          Counted(report.objects(), "object"),
          HumanBytes(report.payload_bytes_read()),
          Counted(report.records(), "record"),
          Counted(report.fault_count(), "fault"));
    return absl::OkStatus();
  }
  Print(stdout,
        "%s, %s (%s read), %d unfinished, %d referred to and not here: %s\n",
        Counted(report.records(), "record"),
        Counted(report.payloads(), "payload"),
        HumanBytes(report.payload_bytes_read()), report.partial_payloads(),
        report.missing_payloads(), Counted(report.fault_count(), "fault"));
  return absl::OkStatus();
}

struct DeleteFlags {
  std::string run, steps;
};

absl::Status Delete(const Globals& globals, const DeleteFlags& flags) {
  v1::DeleteRequest request;
  request.set_run(flags.run);
  // No steps mean the complete run, here and on the wire, so text that is not a
  // list of steps must be refused here.
  RP_ASSIGN_OR_RETURN(const std::vector<int64_t> steps,
                      ParseRanges("--steps", flags.steps));
  request.mutable_steps()->Assign(steps.begin(), steps.end());
  const Client client(globals);
  RP_ASSIGN_OR_RETURN(
      const v1::DeleteReport report,
      client.Act(&ArchiveStub::Delete, request, kLongestSeconds));
  if (PrintIf(globals.json, report)) return absl::OkStatus();
  if (report.later()) {
    Print(stdout,
          "deleted %s, %s; a janitor of the store gives their space back "
          "(docs/scale.md)\n",
          Counted(report.steps(), "rank-step"),
          Counted(report.records(), "record"));
    return absl::OkStatus();
  }
  Print(stdout, "deleted %s, %s, %s (%s); %s of files are free again\n",
        Counted(report.steps(), "rank-step"),
        Counted(report.records(), "record"),
        Counted(report.payloads(), "payload"),
        HumanBytes(report.payload_bytes()).c_str(),
        HumanBytes(report.file_bytes()).c_str());
  if (report.kept_payloads() > 0) {
    Print(stdout,
          "not deleted: %s, until no rank can refer to them: 10 minutes after "
          "the run's last frame, or when all ranks are 32 steps further\n",
          Counted(report.kept_payloads(), "payload"));
  }
  return absl::OkStatus();
}

struct BackupFlags {
  std::string directory;
  bool copy = false;
};

absl::Status Backup(const Globals& globals, const BackupFlags& flags) {
  v1::BackupRequest request;
  request.set_server_directory(flags.directory);
  request.set_copy(flags.copy);
  const Client client(globals);
  RP_ASSIGN_OR_RETURN(
      const v1::BackupReport report,
      client.Act(&ArchiveStub::Backup, request, kLongestSeconds));
  if (PrintIf(globals.json, report)) return absl::OkStatus();
  Print(stdout,
        "backup at %s on the collector's machine: %s (%s, %d shared), %s\n",
        flags.directory, Counted(report.segments(), "segment"),
        HumanBytes(report.segment_bytes()), report.linked(),
        Counted(report.index_rows(), "index row"));
  return absl::OkStatus();
}

}  // namespace

void RegisterArchiveCommands(const Registry& to) {
  const auto [verify, flags] = to.Add<VerifyFlags>(
      "verify", "check the archive while it is in use", Verify);
  verify->add_flag("--read-data", flags->read_data,
                   "read the payload bytes too");
  verify->add_option("--subset", flags->subset,
                     "percent of the payloads to read, like 10%");

  const auto [remove, of] =
      to.Add<DeleteFlags>("delete", "delete a run, or steps of it", Delete);
  remove->add_option("--run", of->run, "the run")->required();
  remove
      ->add_option("--steps", of->steps,
                   "like 0,4-6; all steps of the run if left out")
      ->check(WhyNoRanges);

  const auto [backup, copied] = to.Add<BackupFlags>(
      "backup", "make a consistent copy of the archive, while it is in use",
      Backup);
  backup
      ->add_option("directory", copied->directory,
                   "new directory on the collector's machine, below an "
                   "--export-root")
      ->required();
  backup->add_flag("--copy", copied->copy,
                   "copy all bytes, also where they could be shared");
}

}  // namespace rankprobe
