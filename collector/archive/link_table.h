// SPDX-License-Identifier: Apache-2.0
// Table of the files of an export by tensor, so that equal tensors become names
// of one file. Owned by one export; thread-safe.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_LINK_TABLE_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_LINK_TABLE_H_

#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "collector/archive/request_cut.h"
#include "dump_format/manifest.h"

namespace rankprobe {

class LinkTable {
 public:
  // Returns equal keys for tensors whose files are equal.
  static std::string ContentOf(const v1::TensorSummary& tensor,
                               const ByteRange& bytes) {
    return absl::StrCat(tensor.payload().digest(), tensor.dtype(), "(",
                        absl::StrJoin(tensor.shape(), ","), ")", bytes.begin,
                        "+", bytes.size());
  }
  std::optional<Manifest::File> Find(const std::string& content) {
    absl::MutexLock lock(&mutex_);
    const auto it = files_.find(content);
    if (it == files_.end()) return std::nullopt;
    return it->second;
  }
  void Add(const std::string& content, const Manifest::File& file) {
    absl::MutexLock lock(&mutex_);
    files_.emplace(content, file);
  }

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Manifest::File> files_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_LINK_TABLE_H_
