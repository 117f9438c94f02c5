// SPDX-License-Identifier: Apache-2.0
#include "cli/output/export_receiver.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/client/answer_stream.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// The collector accepts requests of 1 MiB.
constexpr size_t kMaxOfferBytes = 900 << 10;
// Upper bound for length, checksum and the tags around them.
constexpr size_t kOfferOverheadBytes = 32;

}  // namespace

bool IsSafeRelativePath(absl::string_view path) {
  // Limits of Linux: PATH_MAX and, below, NAME_MAX.
  if (path.empty() || path.size() > 4096) return false;
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (part.empty() || part == "." || part == ".." || part.size() > 255)
      return false;
    for (const char c : part) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
    }
  }
  return true;
}

bool ReceivedExport::IsWorthKeeping() const {
  return absl::IsResourceExhausted(written) ||
         (written.ok() && (absl::IsUnavailable(called) || was_damaged));
}

absl::Status ReceivedExport::status() const {
  RP_RETURN_IF_ERROR(written);
  RP_RETURN_IF_ERROR(called);
  if (done.has_value()) return absl::OkStatus();
  return absl::DataLossError(
      "the collector's answer ended before the export was complete");
}

ReceivedExport ReceiveExport(
    const Client& client, const v1::ExportRequest& request,
    absl::FunctionRef<absl::Status(const v1::ExportEvent&)> take) {
  using Stream = AnswerStream<v1::ExportEvent>;
  Stream reader(client, kLongestExportSeconds, &ArchiveStub::Export, request,
                Stream::Repeats::kFromItsBegin);
  ReceivedExport received;
  for (v1::ExportEvent event; received.written.ok() && reader.Read(&event);) {
    if (event.has_done()) received.done = event.done();
    received.written = take(event);
  }
  // Finish would wait for a stream that is no longer read. It then returns
  // CANCELLED; the reason is in `written`.
  if (!received.written.ok()) reader.Cancel();
  received.called = reader.Finish();
  received.was_damaged = reader.WasDamaged();
  return received;
}

absl::StatusOr<std::unique_ptr<ExportFiles>> ExportFiles::Open(
    FileSystem* file_system, const std::string& directory,
    StagedTree::Leftovers leftovers) {
  RP_ASSIGN_OR_RETURN(std::unique_ptr<StagedTree> tree,
                      StagedTree::Open(file_system, directory, leftovers));
  return std::unique_ptr<ExportFiles>(
      new ExportFiles(file_system, directory, std::move(tree),
                      leftovers == StagedTree::Leftovers::kReuse));
}

absl::Status ExportFiles::BeginAgain() {
  tree_->Keep();
  file_.reset();
  missing_bytes_ = 0;
  steps_.clear();
  // The old tree holds the lock of the directory.
  tree_.reset();
  RP_ASSIGN_OR_RETURN(tree_, StagedTree::Open(file_system_, directory_,
                                              StagedTree::Leftovers::kReuse));
  continues_ = true;
  return absl::OkStatus();
}

ReceivedExport ExportFiles::Receive(
    const Client& client, v1::ExportRequest request,
    absl::FunctionRef<absl::Status(const v1::ExportEvent&)> watch) {
  for (int calls = 1;; ++calls) {
    ReceivedExport received;
    if (continues_) received.written = Offer(&request);
    if (!received.written.ok()) return received;
    received = ReceiveExport(client, request, [&](const auto& event) {
      RP_RETURN_IF_ERROR(watch(event));
      return OnEvent(event);
    });
    if (!received.written.ok() || !received.was_damaged || calls == kMostCalls)
      return received;
    received.written = BeginAgain();
    if (!received.written.ok()) return received;
  }
}

absl::Status ExportFiles::Offer(v1::ExportRequest* request) {
  request->set_resume(true);
  request->clear_kept();
  RP_ASSIGN_OR_RETURN(const std::vector<StagedTree::File> files,
                      tree_->ReusableFiles());
  size_t bytes = 0;
  for (const StagedTree::File& file : files) {
    bytes += file.path.size() + kOfferOverheadBytes;
    // Files that are not listed are only sent again.
    if (bytes > kMaxOfferBytes) break;
    v1::ExportKeptFile* const kept = request->add_kept();
    kept->set_path(file.path);
    kept->set_length_bytes(file.length_bytes);
    kept->set_xxh3(file.xxh3);
  }
  return absl::OkStatus();
}

absl::Status ExportFiles::CheckStep(absl::string_view path) {
  const absl::string_view step = path.substr(0, path.find('/'));
  const std::string place = absl::StrCat(directory_, "/", step);
  std::error_code fault;
  if (std::filesystem::is_symlink(place, fault)) {
    return absl::PermissionDeniedError(
        absl::StrCat(place, " is a symbolic link, and none is followed"));
  }
  steps_.emplace(step);
  return absl::OkStatus();
}

absl::Status ExportFiles::CloseFile() {
  if (file_ == nullptr) return absl::OkStatus();
  if (missing_bytes_ != 0) {
    return absl::DataLossError(absl::StrCat(
        "the collector sent ", missing_bytes_, " bytes too few of ", path_));
  }
  absl::Status status = file_->Close();
  file_.reset();
  return status;
}

absl::Status ExportFiles::OnEvent(const v1::ExportEvent& event) {
  const auto checked = [](const std::string& path) -> absl::Status {
    if (IsSafeRelativePath(path)) return absl::OkStatus();
    return absl::PermissionDeniedError(
        "the collector sent a path that leaves the directory; nothing was "
        "written there");
  };
  switch (event.event_case()) {
    case v1::ExportEvent::kDirectory:
      RP_RETURN_IF_ERROR(checked(event.directory()));
      RP_RETURN_IF_ERROR(CheckStep(event.directory()));
      return tree_->MakeDirectory(event.directory());
    case v1::ExportEvent::kFileBegin: {
      RP_RETURN_IF_ERROR(CloseFile());
      RP_RETURN_IF_ERROR(checked(event.file_begin().path()));
      path_ = tree_->PathOf(event.file_begin().path());
      missing_bytes_ = event.file_begin().length_bytes();
      RP_ASSIGN_OR_RETURN(file_, file_system_->OpenForWrite(
                                     path_, FileSystem::OpenMode::kTruncate));
      return absl::OkStatus();
    }
    case v1::ExportEvent::kFiles:
      RP_RETURN_IF_ERROR(CloseFile());
      for (const v1::ExportFile& file : event.files().files()) {
        RP_RETURN_IF_ERROR(checked(file.path()));
        path_ = tree_->PathOf(file.path());
        RP_ASSIGN_OR_RETURN(file_, file_system_->OpenForWrite(
                                       path_, FileSystem::OpenMode::kTruncate));
        RP_RETURN_IF_ERROR(file_->Append(file.data()));
        RP_RETURN_IF_ERROR(CloseFile());
      }
      return absl::OkStatus();
    case v1::ExportEvent::kFileData: {
      const std::string& data = event.file_data().data();
      if (file_ == nullptr || data.size() > missing_bytes_) {
        return absl::DataLossError(
            "the collector sent more bytes than it announced");
      }
      missing_bytes_ -= data.size();
      return file_->Append(data);
    }
    case v1::ExportEvent::kFileAbort:
      if (file_ == nullptr) return absl::OkStatus();
      file_.reset();
      missing_bytes_ = 0;
      return file_system_->Delete(path_);
    case v1::ExportEvent::kFileLink:
      RP_RETURN_IF_ERROR(CloseFile());
      RP_RETURN_IF_ERROR(checked(event.file_link().path()));
      RP_RETURN_IF_ERROR(checked(event.file_link().existing()));
      return tree_->Link(event.file_link().path(),
                         event.file_link().existing());
    case v1::ExportEvent::kFileKept:
      RP_RETURN_IF_ERROR(CloseFile());
      RP_RETURN_IF_ERROR(checked(event.file_kept()));
      return tree_->Reuse(event.file_kept());
    default:
      return absl::OkStatus();
  }
}

absl::Status ExportFiles::Finish(absl::string_view run) {
  RP_RETURN_IF_ERROR(CloseFile());
  // Checked again, because the directory may have changed during the export.
  for (const std::string& step : steps_) RP_RETURN_IF_ERROR(CheckStep(step));
  return tree_->Publish(run);
}

}  // namespace rankprobe
