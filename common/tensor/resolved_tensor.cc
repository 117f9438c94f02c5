// SPDX-License-Identifier: Apache-2.0
#include "common/tensor/resolved_tensor.h"

#include "common/tensor/dtype.h"

namespace rankprobe {

ResolvedTensor::ResolvedTensor(const TensorView& from)
    : view(from),
      element_bytes(ElementSize(from.dtype)),
      family(FamilyOf(from.dtype)),
      elements(NumElements(from)),
      bytes(static_cast<uint64_t>(elements) * element_bytes) {}

void ResolvedTensor::Narrow(const void* data, absl::Span<const int64_t> sizes) {
  view.data = data;
  view.sizes = sizes;
  elements = NumElements(view);
  bytes = static_cast<uint64_t>(elements) * element_bytes;
}

StridedLayout LayoutOf(const ResolvedTensor& tensor, bool in_order) {
  return in_order ? LayoutInOrder(tensor.view)
                  : LayoutInAnyOrder(tensor.view, tensor.element_bytes);
}

}  // namespace rankprobe
