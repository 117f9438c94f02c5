// SPDX-License-Identifier: Apache-2.0
// A tensor as raw memory, which every front end (LibTorch, Python, NumPy) can
// provide without a common ABI. Borrowed: data, sizes and strides must stay
// valid and unchanged during the call that takes the view. CPU memory only.
#ifndef RANKPROBE_COMMON_TENSOR_TENSOR_VIEW_H_
#define RANKPROBE_COMMON_TENSOR_TENSOR_VIEW_H_

#include <cstdint>

#include "absl/types/span.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

struct TensorView {
  // First logical element; may be null when a size is 0.
  const void* data = nullptr;
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  absl::Span<const int64_t> sizes;
  // In elements, with as many entries as sizes; may be 0 (expanded) or
  // negative.
  absl::Span<const int64_t> strides;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TENSOR_TENSOR_VIEW_H_
