#include "cli/export_files.h"

#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace rankprobe {

bool IsSafeRelativePath(absl::string_view path) {
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

ExportFiles::ExportFiles(FileSystem* file_system, std::string directory)
    : file_system_(file_system),
      directory_(std::move(directory)),
      temporary_(absl::StrCat(directory_, "/.rankprobe-export-", ::getpid())) {}

ExportFiles::~ExportFiles() {
  file_.reset();
  if (file_system_->Exists(temporary_))
    file_system_->DeleteTree(temporary_).IgnoreError();
}

absl::Status ExportFiles::Start() {
  RP_RETURN_IF_ERROR(file_system_->CreateDirectories(temporary_ + "/new"));
  return file_system_->CreateDirectories(temporary_ + "/old");
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
      return file_system_->CreateDirectories(
          absl::StrCat(temporary_, "/new/", event.directory()));
    case v1::ExportEvent::kFileBegin: {
      RP_RETURN_IF_ERROR(CloseFile());
      RP_RETURN_IF_ERROR(checked(event.file_begin().path()));
      path_ = absl::StrCat(temporary_, "/new/", event.file_begin().path());
      missing_bytes_ = event.file_begin().length_bytes();
      RP_ASSIGN_OR_RETURN(file_, file_system_->OpenForWrite(
                                     path_, FileSystem::OpenMode::kTruncate));
      return absl::OkStatus();
    }
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
    default:
      return absl::OkStatus();
  }
}

absl::Status ExportFiles::Finish() {
  RP_RETURN_IF_ERROR(CloseFile());
  const std::string fresh = temporary_ + "/new", old = temporary_ + "/old";
  RP_ASSIGN_OR_RETURN(const std::vector<std::string> steps,
                      file_system_->List(fresh));
  for (const std::string& step : steps) {
    if (step == "manifest.json") continue;
    RP_RETURN_IF_ERROR(
        file_system_->CreateDirectories(absl::StrCat(directory_, "/", step)));
    RP_ASSIGN_OR_RETURN(const std::vector<std::string> ranks,
                        file_system_->List(absl::StrCat(fresh, "/", step)));
    for (const std::string& rank : ranks) {
      const std::string target = absl::StrCat(directory_, "/", step, "/", rank);
      if (file_system_->Exists(target)) {
        RP_RETURN_IF_ERROR(file_system_->Rename(
            target, absl::StrCat(old, "/", step, "-", rank)));
      }
      RP_RETURN_IF_ERROR(file_system_->Rename(
          absl::StrCat(fresh, "/", step, "/", rank), target));
    }
  }
  if (file_system_->Exists(fresh + "/manifest.json")) {
    RP_RETURN_IF_ERROR(file_system_->Rename(fresh + "/manifest.json",
                                            directory_ + "/manifest.json"));
  }
  return file_system_->DeleteTree(temporary_);
}

}  // namespace rankprobe
