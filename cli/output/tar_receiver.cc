// SPDX-License-Identifier: Apache-2.0
#include "cli/output/tar_receiver.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <locale.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/output/export_receiver.h"
#include "common/base/status_macros.h"

namespace rankprobe {

void TarFiles::Close::operator()(archive* tar) const {
  archive_write_free(tar);
}

absl::StatusOr<std::unique_ptr<TarFiles>> TarFiles::Open(
    const std::string& path) {
  std::unique_ptr<archive, Close> tar(archive_write_new());
  if (tar == nullptr) return absl::ResourceExhaustedError("out of memory");
  archive_write_set_format_pax_restricted(tar.get());
  const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  // Without such a locale, names are written as bytes and marked as such.
  if (utf8 == nullptr)
    archive_write_set_options(tar.get(), "hdrcharset=BINARY");
  std::string temporary;
  int fd = -1;
  if (path != "-") {
    struct stat st;
    const bool special = ::stat(path.c_str(), &st) == 0 && !S_ISREG(st.st_mode);
    if (!special) temporary = path + ".tmp";
    // O_EXCL: an existing FILE.tmp may belong to another program and is not
    // overwritten. Opening a FIFO must not block, because a reader may never
    // come.
    fd = special
             ? ::open(path.c_str(), O_WRONLY | O_CLOEXEC |
                                        (S_ISFIFO(st.st_mode) ? O_NONBLOCK : 0))
             : ::open(temporary.c_str(),
                      O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
    if (fd < 0) {
      const int error = errno;
      const std::string& name = special ? path : temporary;
      const std::string message =
          absl::StrCat(name, ": ", std::strerror(error),
                       error == EEXIST  ? " (of an export that was killed? "
                                          "remove it)"
                       : error == ENXIO ? " (it has no reader: start the "
                                          "reader first, or use --tar - |)"
                                        : "");
      if (utf8 != nullptr) ::freelocale(utf8);
      return error == ENOSPC || error == EDQUOT
                 ? absl::ResourceExhaustedError(message)
                 : absl::InvalidArgumentError(message);
    }
  }
  // Only the opening must not block.
  if (fd >= 0) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  std::unique_ptr<TarFiles> files(
      new TarFiles(path, std::move(temporary), fd, utf8, std::move(tar)));
  struct stat out;
  const bool regular = ::fstat(files->out(), &out) == 0 && S_ISREG(out.st_mode);
  // It was opened as a device and has been replaced by a regular file, which is
  // only written as FILE.tmp.
  if (regular && path != "-" && files->temporary_.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " was replaced by another file; try again"));
  }
  // Tapes and pipes get complete blocks.
  archive_write_set_bytes_in_last_block(files->tar_.get(), regular ? 1 : 0);
  if (archive_write_open(files->tar_.get(), files.get(), nullptr, &Write,
                         nullptr) != ARCHIVE_OK)
    return files->Error();
  return files;
}

ssize_t TarFiles::Write(archive* tar, void* self, const void* data,
                        size_t size) {
  const auto* const files = static_cast<const TarFiles*>(self);
  // Returning an error stops libarchive from filling the current file up to the
  // announced length.
  if (files->dropped_) {
    archive_set_error(tar, ECANCELED, "given up");
    return -1;
  }
  ssize_t written = 0;
  do {
    written = ::write(files->out(), data, size);
  } while (written < 0 && errno == EINTR);
  if (written < 0) archive_set_error(tar, errno, "cannot be written");
  return written;
}

TarFiles::~TarFiles() {
  if (utf8_ != nullptr) ::freelocale(utf8_);
  if (!finished_) {
    // Otherwise the archive would be ended as if it were complete.
    // (archive_write_fail() would prevent this, too, but leaks the archive's
    // memory.)
    dropped_ = true;
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
    tar_.reset();
  }
  if (fd_ >= 0) ::close(fd_);
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
             : absl::InvalidArgumentError(message);
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
  // libarchive assumes that names are in the thread's locale.
  const locale_t before = utf8_ == nullptr ? nullptr : ::uselocale(utf8_);
  const int written = archive_write_header(tar_.get(), entry.get());
  if (before != nullptr) ::uselocale(before);
  return written == ARCHIVE_OK ? absl::OkStatus() : Error();
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
          "; an export with -o continues without that file and lists it"));
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
  if (fd_ >= 0 && ::close(std::exchange(fd_, -1)) != 0)
    return absl::DataLossError(absl::StrCat(path_, ": ", std::strerror(errno)));
  if (!temporary_.empty() &&
      std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": ", std::strerror(errno)));
  }
  finished_ = true;
  return absl::OkStatus();
}

}  // namespace rankprobe
