// SPDX-License-Identifier: Apache-2.0
// Values of the index as the messages they are. Inside the store only; free
// functions.
#ifndef RANKPROBE_COLLECTOR_STORE_ROWS_H_
#define RANKPROBE_COLLECTOR_STORE_ROWS_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/store/index.h"
#include "common/base/status_macros.h"

namespace rankprobe {

template <typename M>
bool ParseRow(absl::string_view value, M* message) {
  return message->ParseFromArray(value.data(), static_cast<int>(value.size()));
}

// Returns nothing if the row does not exist; DATA_LOSS if it cannot be parsed.
template <typename M>
absl::StatusOr<std::optional<M>> GetRow(Index* index, absl::string_view key) {
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> bytes, index->Get(key));
  if (!bytes.has_value()) return std::optional<M>();
  M message;
  if (!ParseRow(*bytes, &message))
    return absl::DataLossError("a value of the index cannot be read");
  return std::optional<M>(std::move(message));
}

// Write or delete a single row.
inline absl::Status PutRow(Index* index, absl::string_view key,
                           absl::string_view value, bool sync) {
  std::unique_ptr<IndexBatch> batch = index->NewBatch();
  batch->Put(key, value);
  return index->Write(std::move(batch), sync);
}
inline absl::Status DeleteRow(Index* index, absl::string_view key) {
  std::unique_ptr<IndexBatch> batch = index->NewBatch();
  batch->Delete(key);
  return index->Write(std::move(batch), /*sync=*/false);
}

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_ROWS_H_
