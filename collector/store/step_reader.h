// SPDX-License-Identifier: Apache-2.0
// Rows of steps of a run as what is said of them to readers. Inside the store only;
// one thread at a time, over an index that outlives it. DATA_LOSS: a row cannot be
// read.
#ifndef RANKPROBE_COLLECTOR_STORE_STEP_READER_H_
#define RANKPROBE_COLLECTOR_STORE_STEP_READER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/store/index.h"
#include "rankprobe/v1/archive.pb.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

class StepReader {
 public:
  StepReader(Index* index, uint32_t run) : index_(index), run_(run) {}

  // A row of table s; Add keeps what it says.
  absl::StatusOr<v1::StepInfo> Read(absl::string_view key,
                                    absl::string_view value);
  absl::Status Add(absl::string_view key, absl::string_view value);
  size_t size() const { return out_.size(); }
  // By step, rank, process and incarnation.
  std::vector<v1::StepInfo> TakeSorted();

 private:
  absl::StatusOr<const v1::Identity*> IdentityOf(uint64_t incarnation);

  Index* const index_;
  const uint32_t run_;
  std::map<uint64_t, v1::Identity> identities_;
  std::vector<v1::StepInfo> out_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_STEP_READER_H_
