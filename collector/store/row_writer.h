// SPDX-License-Identifier: Apache-2.0
// Index rows by the thousand, written in batches of bounded size, so that
// neither memory nor one write grows with an archive. Plain value, one thread
// at a time; the index outlives it. Rows since the last full batch are lost
// without Finish.
#ifndef RANKPROBE_COLLECTOR_STORE_ROW_WRITER_H_
#define RANKPROBE_COLLECTOR_STORE_ROW_WRITER_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "collector/store/index.h"

namespace rankprobe {

class RowWriter {
 public:
  static constexpr uint64_t kRowsPerBatch = 2000;

  explicit RowWriter(Index* index) : index_(index), batch_(index->NewBatch()) {}

  absl::Status Put(absl::string_view key, absl::string_view value) {
    batch_->Put(key, value);
    return Count();
  }
  absl::Status Delete(absl::string_view key) {
    batch_->Delete(key);
    return Count();
  }
  // Deletes all rows whose key begins with `prefix`.
  absl::Status DeleteAll(absl::string_view prefix) {
    return index_->Scan(prefix,
                        [this](absl::string_view key, absl::string_view) {
                          return Delete(key);
                        });
  }
  // Writes the remaining rows; with `sync`, every row is on the disk
  // afterwards.
  absl::Status Finish(bool sync) {
    if (std::exchange(waiting_, 0) == 0 && !sync) return absl::OkStatus();
    return index_->Write(std::exchange(batch_, index_->NewBatch()), sync);
  }
  // Number of rows put and deleted so far.
  uint64_t rows() const { return rows_; }

 private:
  absl::Status Count() {
    ++rows_;
    return ++waiting_ < kRowsPerBatch ? absl::OkStatus()
                                      : Finish(/*sync=*/false);
  }

  Index* const index_;
  std::unique_ptr<IndexBatch> batch_;
  uint64_t rows_ = 0, waiting_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_ROW_WRITER_H_
