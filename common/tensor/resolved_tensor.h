// SPDX-License-Identifier: Apache-2.0
// A tensor with the properties that each step of its summary needs, resolved
// once and passed from the recorder down to the kernels. Pure functions; the
// view is borrowed as in tensor_view.h.
#ifndef RANKPROBE_COMMON_TENSOR_RESOLVED_TENSOR_H_
#define RANKPROBE_COMMON_TENSOR_RESOLVED_TENSOR_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/tensor/dtype.h"
#include "common/tensor/strided_layout.h"
#include "common/tensor/summary.h"
#include "common/tensor/tensor_view.h"

namespace rankprobe {

struct ResolvedTensor {
  explicit ResolvedTensor(const TensorView& from);

  // Restricts the view to the part that begins at `data` and has these sizes,
  // which must outlive this object.
  void Narrow(const void* data, absl::Span<const int64_t> sizes);

  // Whether there are elements to read.
  bool has_memory() const { return view.data != nullptr && bytes > 0; }

  TensorView view;
  // 0 for DTYPE_UNSPECIFIED.
  size_t element_bytes;
  Family family;
  int64_t elements;
  // Size of the contiguous copy.
  uint64_t bytes;
};

// The layout of `tensor`, which must have memory. Without `in_order` the result
// only has equal elements, in any order.
StridedLayout LayoutOf(const ResolvedTensor& tensor, bool in_order);

// The result of Summarize(tensor.view, request). `layout` is the tensor's, in
// order if and only if SummaryNeedsOrder(request); it is not read if the tensor
// has no memory.
Summary Summarize(const ResolvedTensor& tensor, const StridedLayout& layout,
                  const SummaryRequest& request);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TENSOR_RESOLVED_TENSOR_H_
