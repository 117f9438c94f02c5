// SPDX-License-Identifier: Apache-2.0
// A table that a job made (csv), held in memory so that a page can read any
// window of it, sorted and filtered, without the complete table. It contains
// texts from records, so it is not trusted. Thread-safe.
#ifndef RANKPROBE_WEB_JOBS_RESULT_TABLE_H_
#define RANKPROBE_WEB_JOBS_RESULT_TABLE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/jobs.pb.h"

namespace rankprobe {

class ResultTable {
 public:
  static constexpr uint64_t kMaxFileBytes = 256 << 20;
  static constexpr uint64_t kMaxCells = 32'000'000;
  static constexpr uint32_t kMaxWindow = 1000;

  // Reads a table. Returns INVALID_ARGUMENT if the file is not a table,
  // RESOURCE_EXHAUSTED if it is too large.
  static absl::StatusOr<std::shared_ptr<ResultTable>> Read(
      FileSystem* file_system, const std::string& path,
      uint64_t max_file_bytes = kMaxFileBytes);

  // Returns a window. Returns INVALID_ARGUMENT for an unknown column or more
  // rows than a window may have.
  absl::StatusOr<v1::JobRows> Rows(const v1::JobRowsRequest& request);

  uint64_t bytes() const {
    return text_.size() + cells_.size() * sizeof(cells_[0]);
  }

 private:
  ResultTable() = default;
  size_t row_count() const {
    return columns_.empty() ? 0 : cells_.size() / columns_.size();
  }
  absl::string_view Cell(size_t row, size_t column) const {
    const auto& [offset, size] = cells_[row * columns_.size() + column];
    return absl::string_view(text_).substr(offset, size);
  }
  // Returns a word such as "error" or "no partner"; empty if the table has no
  // results.
  absl::string_view ResultOf(size_t row) const;
  absl::Status CheckRequest(const v1::JobRowsRequest& request,
                            size_t* sort_column) const;
  // Selects and sorts the requested rows, and counts the rows of each result.
  void Choose(const v1::JobRowsRequest& request, size_t sort_column)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Sort(size_t column, bool descending)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::vector<std::string> columns_;
  // Indices of the columns "Result" and "Bench Name"; equal to the number of
  // columns if there is none.
  size_t result_column_ = 0;
  size_t partner_column_ = 0;
  std::string text_;
  // Offset and size in text_, row by row.
  std::vector<std::pair<uint32_t, uint32_t>> cells_;

  absl::Mutex mutex_;
  // The last request without its window: scrolling repeats the same request.
  std::string chosen_for_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> chosen_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<std::string, uint64_t>> results_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_JOBS_RESULT_TABLE_H_
