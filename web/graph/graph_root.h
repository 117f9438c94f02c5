// SPDX-License-Identifier: Apache-2.0
// The directory that `rankprobe view --root` shows: graph databases and dumps
// below it. Files outside it cannot be reached, whatever a request names and
// whatever links it contains: every file is opened from a descriptor of the
// root, and no link is followed. Thread-safe.
#ifndef RANKPROBE_WEB_GRAPH_GRAPH_ROOT_H_
#define RANKPROBE_WEB_GRAPH_GRAPH_ROOT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/descriptor_walk.h"

namespace rankprobe {

struct FoundFile {
  std::string path;  // below the root: "a/compare_1.vis.db"
  uint64_t size_bytes = 0;
  int64_t modified_unix_s = 0;
};

struct FoundDump {
  std::string path;  // "" is the root itself
  int64_t steps = 0;
  int64_t ranks = 0;
};

struct Found {
  std::vector<FoundFile> databases;  // the newest first
  std::vector<FoundDump> dumps;
  // There is more than was looked at.
  bool truncated = false;
};

class GraphRoot {
 public:
  // Opens the root. NOT_FOUND and FAILED_PRECONDITION name the directory.
  static absl::StatusOr<std::unique_ptr<GraphRoot>> Open(
      const std::string& directory);
  GraphRoot(const GraphRoot&) = delete;
  GraphRoot& operator=(const GraphRoot&) = delete;

  const std::string& directory() const { return directory_; }

  // Searches at most six directory levels and 200,000 names.
  Found List() const;
  // Opens a regular file for reading. Returns INVALID_ARGUMENT for a path that
  // IsPathBelow() refuses, and PERMISSION_DENIED with the name of a link in the
  // path.
  absl::StatusOr<Descriptor> OpenFile(absl::string_view path) const;
  absl::StatusOr<std::string> ReadText(absl::string_view path,
                                       size_t max_bytes) const;
  // Writes a file atomically. Its name must be unused or that of a regular
  // file.
  absl::Status WriteText(absl::string_view path, absl::string_view text) const;
  // Returns "DIR/path" of an existing directory whose path has no link.
  absl::StatusOr<std::string> FindDirectory(absl::string_view path) const;
  // Returns "DIR/path" for readers of dumps, which confine themselves to the
  // root.
  absl::StatusOr<std::string> DirectoryOf(absl::string_view path) const;

 private:
  GraphRoot(std::string directory, Descriptor descriptor, bool openat2);

  const std::string directory_;
  const Descriptor descriptor_;
  const bool openat2_;
};

// Whether a request may name the path: "a/b", without "..", ".", "//", NUL or
// more than 4,096 bytes. The empty path is the root.
bool IsPathBelow(absl::string_view path);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_GRAPH_GRAPH_ROOT_H_
