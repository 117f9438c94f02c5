// SPDX-License-Identifier: Apache-2.0
// Files of a streamed export as a tar (pax, names in UTF-8 in any locale) to a
// file or standard output, as they come. Paths from the collector are not
// trusted. Not thread-safe.
// Failure: nothing can be removed from a tar, so a payload that turns out to be
// unreadable ends it with DATA_LOSS. A tar file is written as FILE.tmp and
// renamed when it is complete: an older FILE stays until then, and only files
// that this object made are deleted. A FILE that is not a regular file (a FIFO,
// a tape) is written directly.
#ifndef RANKPROBE_CLI_OUTPUT_TAR_RECEIVER_H_
#define RANKPROBE_CLI_OUTPUT_TAR_RECEIVER_H_

#include <locale.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rankprobe/v1/archive.pb.h"

struct archive;

namespace rankprobe {

class TarFiles {
 public:
  // Opens a file; "-" is standard output.
  static absl::StatusOr<std::unique_ptr<TarFiles>> Open(
      const std::string& path);
  ~TarFiles();

  absl::Status OnEvent(const v1::ExportEvent& untrusted);
  absl::Status Finish();

 private:
  struct Close {
    void operator()(archive* tar) const;
  };
  TarFiles(std::string path, std::string temporary, int fd, locale_t utf8,
           std::unique_ptr<archive, Close> tar)
      : path_(std::move(path)),
        temporary_(std::move(temporary)),
        fd_(fd),
        utf8_(utf8),
        tar_(std::move(tar)) {}
  // `link_target` is empty for an independent file.
  absl::Status Header(const std::string& path, unsigned type,
                      uint64_t length_bytes, const std::string& link_target);
  absl::Status Data(const std::string& data);
  absl::Status EndFile();
  absl::Status Error() const;
  int out() const { return fd_ < 0 ? STDOUT_FILENO : fd_; }
  // Called by libarchive; `self` is the TarFiles.
  static ssize_t Write(archive* tar, void* self, const void* data, size_t size);

  const std::string path_;
  // Name of the file until it is renamed; empty if the tar is written directly.
  const std::string temporary_;
  int fd_;                // -1: standard output
  bool dropped_ = false;  // writes by libarchive fail
  const locale_t utf8_;   // null: the system has none
  std::unique_ptr<archive, Close> tar_;
  std::string file_;
  uint64_t missing_bytes_ = 0;
  bool finished_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_TAR_RECEIVER_H_
