// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/export_values.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/client/answer_stream.h"
#include "cli/client/python_worker.h"
#include "cli/exit_codes.h"
#include "cli/output/output.h"
#include "cli/output/value_stream.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"

namespace rankprobe {
namespace {

// Destination of the stream: standard output, or the worker that writes the
// file.
class ValueOutput {
 public:
  static absl::StatusOr<ValueOutput> Open(const ValueExport& wanted) {
    if (wanted.format == kColumnsFormat) {
      if (wanted.output != "-")
        return absl::InvalidArgumentError(
            "--format columns writes to standard output: -o -");
      if (::isatty(STDOUT_FILENO) != 0)
        return absl::InvalidArgumentError(
            "columns cannot be written to a terminal");
      return ValueOutput(nullptr);
    }
    if (wanted.output.empty() || wanted.output == "-") {
      return absl::InvalidArgumentError(absl::StrCat(
          "--format ", wanted.format, " needs -o, the path of what is made"));
    }
    std::vector<std::string> arguments = {wanted.format, wanted.output};
    if (!wanted.payloads.empty()) arguments.push_back(wanted.payloads);
    RP_ASSIGN_OR_RETURN(
        std::unique_ptr<PythonWorker> worker,
        PythonWorker::Start(
            "rankprobe.value_files", arguments,
            absl::StrCat("--format ", wanted.format,
                         " needs Python with the package rankprobe"),
            PythonWorker::Input::kPipe));
    return ValueOutput(std::move(worker));
  }

  absl::Status Write(const std::string& bytes) {
    if (worker_ != nullptr) return worker_->Write(bytes);
    if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("standard output: ", std::strerror(errno)));
    }
    return absl::OkStatus();
  }

  // Returns the worker's exit status; the worker reports its errors itself.
  absl::StatusOr<int> Finish() {
    if (worker_ != nullptr) return worker_->Wait();
    if (std::fflush(stdout) != 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("standard output: ", std::strerror(errno)));
    }
    return 0;
  }

 private:
  explicit ValueOutput(std::unique_ptr<PythonWorker> worker)
      : worker_(std::move(worker)) {}

  std::unique_ptr<PythonWorker> worker_;
};

}  // namespace

std::vector<std::string> ValueFormats() {
  return {"parquet", "tensorboard", "trend", kColumnsFormat};
}

absl::Status ExportValues(const Globals& globals, const ValueExport& wanted,
                          int* exit_code) {
  const Client client(globals);
  // The collector reads the records of the steps, however many.
  AnswerStream<v1::ValuesReply> reader(client, /*extra_seconds=*/86400,
                                       &ArchiveStub::ReadValues,
                                       wanted.request);
  // Opened with the first answer: a run that is not there leaves nothing.
  std::optional<ValueOutput> output;
  std::optional<v1::ValuesEnd> end;
  absl::Status written;
  std::string bytes;
  for (v1::ValuesReply reply; written.ok() && reader.Read(&reply);) {
    bytes.clear();
    if (!output.has_value()) {
      absl::StatusOr<ValueOutput> opened = ValueOutput::Open(wanted);
      written = opened.status();
      if (!written.ok()) break;
      output.emplace(*std::move(opened));
      bytes = ValueStreamHead(wanted.request.run());
    }
    if (end.has_value()) {
      written = absl::DataLossError("the collector's answer cannot be read");
    } else if (reply.has_end()) {
      end = reply.end();
      AppendValueEnd(*end, &bytes);
    } else {
      written = AppendValueFrame(reply.batch(), &bytes);
    }
    if (written.ok()) written = output->Write(bytes);
  }
  if (!written.ok()) reader.Cancel();
  const absl::Status status = reader.Finish();
  int worker_status = 0;
  if (output.has_value()) {
    RP_ASSIGN_OR_RETURN(worker_status, output->Finish());
  }
  // 1 is the status of Python itself; the worker uses others.
  if (worker_status == 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--format ", wanted.format,
        " needs Python with the package rankprobe; RANKPROBE_PYTHON names it"));
  }
  if (worker_status != 0 && (written.ok() || absl::IsCancelled(written))) {
    *exit_code = worker_status;
    return absl::OkStatus();
  }
  RP_RETURN_IF_ERROR(written);
  RP_RETURN_IF_ERROR(status);
  if (!end.has_value())
    return absl::DataLossError("the collector's answer has no end");
  const uint64_t holes =
      end->incomplete_rank_steps() + end->deleted_rank_steps();
  if (holes > 0) *exit_code = kPartial;
  std::FILE* const out = wanted.format == kColumnsFormat ? stderr : stdout;
  if (globals.json) {
    if (out == stdout) PrintJson(ToJson(*end));
    return absl::OkStatus();
  }
  Print(out, "%s: %s of %s\n", wanted.output == "-" ? "columns" : wanted.output,
        Counted(end->rows(), "value"), Counted(end->rank_steps(), "rank-step"));
  if (holes > 0) {
    Print(out, "%s incomplete, %d deleted: rankprobe ledger\n",
          Counted(end->incomplete_rank_steps(), "rank-step"),
          end->deleted_rank_steps());
  }
  return absl::OkStatus();
}

}  // namespace rankprobe
