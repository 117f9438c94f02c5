// SPDX-License-Identifier: Apache-2.0
// A table that a job made (csv), held in memory so that a page can read any
// window of it, sorted and filtered, without the complete table. The job's file
// has texts from records, so its contents are not trusted. Thread-safe.
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

  // INVALID_ARGUMENT: no such table; RESOURCE_EXHAUSTED: larger than a page can
  // look at.
  static absl::StatusOr<std::shared_ptr<ResultTable>> Read(
      FileSystem* file_system, const std::string& path,
      uint64_t max_file_bytes = kMaxFileBytes);

  // INVALID_ARGUMENT: no such column, or more rows than a window has.
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
  // "error", "no partner"; empty: the table has no results.
  absl::string_view ResultOf(size_t row) const;
  absl::Status CheckRequest(const v1::JobRowsRequest& request,
                            size_t* sort_column) const;
  // The rows that are wanted, in their order, and how many have which result.
  void Choose(const v1::JobRowsRequest& request, size_t sort_column)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Sort(size_t column, bool descending)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::vector<std::string> columns_;
  // Of the columns "Result" and "Bench Name"; as many as there are columns:
  // none.
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
