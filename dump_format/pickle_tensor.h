// SPDX-License-Identifier: Apache-2.0
// The pickle of one tensor, as torch.save writes it. Nothing is executed: the
// few globals a tensor needs are symbols here. Pure function of its input.
#ifndef RANKPROBE_DUMP_FORMAT_PICKLE_TENSOR_H_
#define RANKPROBE_DUMP_FORMAT_PICKLE_TENSOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

struct PickledTensor {
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  std::string storage_key;
  int64_t offset = 0;  // in elements
  std::vector<int64_t> shape;
  std::vector<int64_t> stride;
};

absl::StatusOr<PickledTensor> ParseTensorPickle(absl::string_view pickle);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_PICKLE_TENSOR_H_
