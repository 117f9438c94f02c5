#include "cli/tar_files.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/export_files.h"
#include "common/status_macros.h"

namespace rankprobe {

void TarFiles::Close::operator()(archive* tar) const {
  archive_write_free(tar);
}

absl::StatusOr<std::unique_ptr<TarFiles>> TarFiles::Open(
    const std::string& path) {
  std::unique_ptr<archive, Close> tar(archive_write_new());
  if (tar == nullptr) return absl::ResourceExhaustedError("out of memory");
  archive_write_set_format_pax_restricted(tar.get());
  const int opened = path == "-"
                         ? archive_write_open_fd(tar.get(), STDOUT_FILENO)
                         : archive_write_open_filename(tar.get(), path.c_str());
  std::unique_ptr<TarFiles> files(new TarFiles(path, std::move(tar)));
  if (opened != ARCHIVE_OK) {
    files->finished_ = true;  // nothing of ours is there
    return files->Error();
  }
  return files;
}

TarFiles::~TarFiles() {
  if (finished_) return;
  // The archive would be ended as if it were whole.
  archive_write_fail(tar_.get());
  tar_.reset();
  if (path_ != "-") ::unlink(path_.c_str());
}

absl::Status TarFiles::Error() const {
  const int error = archive_errno(tar_.get());
  const char* const text = archive_error_string(tar_.get());
  const std::string message = absl::StrCat(
      path_ == "-" ? "standard output" : path_, ": ",
      text == nullptr ? "cannot be written" : text, error > 0 ? ": " : "",
      error > 0 ? std::strerror(error) : "");
  return error == ENOSPC || error == EDQUOT
             ? absl::ResourceExhaustedError(message)
             : absl::FailedPreconditionError(message);
}

absl::Status TarFiles::Header(const std::string& path, unsigned type,
                              uint64_t length_bytes,
                              const std::string& link_target) {
  if (!IsSafeRelativePath(path) ||
      (!link_target.empty() && !IsSafeRelativePath(link_target))) {
    return absl::PermissionDeniedError(
        "the collector sent a path that leaves the directory");
  }
  const std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry(
      archive_entry_new(), archive_entry_free);
  archive_entry_set_pathname(entry.get(), path.c_str());
  archive_entry_set_filetype(entry.get(), type);
  archive_entry_set_perm(entry.get(), type == S_IFDIR ? 0750 : 0640);
  archive_entry_set_size(entry.get(), static_cast<la_int64_t>(length_bytes));
  if (!link_target.empty())
    archive_entry_set_hardlink(entry.get(), link_target.c_str());
  return archive_write_header(tar_.get(), entry.get()) == ARCHIVE_OK
             ? absl::OkStatus()
             : Error();
}

absl::Status TarFiles::EndFile() {
  if (missing_bytes_ == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the collector sent ", missing_bytes_,
                                          " bytes too few of ", file_));
}

absl::Status TarFiles::Data(const std::string& data) {
  if (data.size() > missing_bytes_) {
    return absl::DataLossError(
        "the collector sent more bytes than it announced");
  }
  missing_bytes_ -= data.size();
  return archive_write_data(tar_.get(), data.data(), data.size()) ==
                 static_cast<la_ssize_t>(data.size())
             ? absl::OkStatus()
             : Error();
}

absl::Status TarFiles::OnEvent(const v1::ExportEvent& event) {
  switch (event.event_case()) {
    case v1::ExportEvent::kDirectory:
      RP_RETURN_IF_ERROR(EndFile());
      return Header(event.directory(), S_IFDIR, 0, "");
    case v1::ExportEvent::kFileBegin:
      RP_RETURN_IF_ERROR(EndFile());
      file_ = event.file_begin().path();
      missing_bytes_ = event.file_begin().length_bytes();
      return Header(file_, S_IFREG, missing_bytes_, "");
    case v1::ExportEvent::kFileData:
      return Data(event.file_data().data());
    case v1::ExportEvent::kFiles:
      for (const v1::ExportFile& file : event.files().files()) {
        RP_RETURN_IF_ERROR(EndFile());
        file_ = file.path();
        missing_bytes_ = file.data().size();
        RP_RETURN_IF_ERROR(Header(file_, S_IFREG, missing_bytes_, ""));
        RP_RETURN_IF_ERROR(Data(file.data()));
      }
      return absl::OkStatus();
    case v1::ExportEvent::kFileAbort:
      return absl::DataLossError(absl::StrCat(
          "the archive cannot give all bytes of ", file_,
          "; an export with -o goes on without that file and lists it"));
    case v1::ExportEvent::kFileLink:
      RP_RETURN_IF_ERROR(EndFile());
      return Header(event.file_link().path(), S_IFREG, 0,
                    event.file_link().existing());
    default:
      return absl::OkStatus();
  }
}

absl::Status TarFiles::Finish() {
  RP_RETURN_IF_ERROR(EndFile());
  if (archive_write_close(tar_.get()) != ARCHIVE_OK) return Error();
  finished_ = true;
  return absl::OkStatus();
}

}  // namespace rankprobe
