// SPDX-License-Identifier: Apache-2.0
#include "common/tensor/strided_layout.h"

#include <cstdlib>
#include <cstring>
#include <utility>

namespace rankprobe {
namespace {

// Merges dimensions that are contiguous.
void Coalesce(StridedLayout* layout) {
  StridedLayout::Extents& sizes = layout->sizes;
  StridedLayout::Extents& strides = layout->strides;
  size_t kept = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (kept > 0 && strides[kept - 1] == strides[d] * sizes[d]) {
      sizes[kept - 1] *= sizes[d];
      strides[kept - 1] = strides[d];
    } else {
      sizes[kept] = sizes[d];
      strides[kept++] = strides[d];
    }
  }
  sizes.resize(kept);
  strides.resize(kept);
}

// Whether the elements lie without gaps, the last dimension innermost. Most
// tensors do. Returns their number in `count`.
bool IsContiguous(const TensorView& view, int64_t* count) {
  *count = 1;
  for (size_t d = view.sizes.size(); d-- > 0;) {
    if (view.sizes[d] == 1) continue;
    if (view.strides[d] != *count) return false;
    *count *= view.sizes[d];
  }
  return true;
}

StridedLayout Contiguous(const void* data, int64_t count) {
  StridedLayout layout;
  layout.data = static_cast<const char*>(data);
  if (count != 1) {
    layout.sizes.push_back(count);
    layout.strides.push_back(1);
  }
  return layout;
}

struct Bytes16 {
  uint64_t words[2];
};

template <typename T>
void GatherAs(const char* from, int64_t rows, int64_t columns,
              int64_t row_stride, int64_t column_stride, char* to) {
  constexpr int64_t kSize = sizeof(T);
  const auto move = [](const char* source, char* target) {
    T v;
    std::memcpy(&v, source, sizeof(T));
    std::memcpy(target, &v, sizeof(T));
  };
  if (std::abs(row_stride) < std::abs(column_stride) && rows > 1) {
    // A transpose: neighbours in memory are neighbours in a column of `to`.
    for (int64_t c = 0; c < columns; ++c) {
      const char* source = from + c * column_stride * kSize;
      char* target = to + c * kSize;
      for (int64_t r = 0; r < rows; ++r) {
        move(source, target);
        source += row_stride * kSize;
        target += columns * kSize;
      }
    }
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    const char* source = from + r * row_stride * kSize;
    if (column_stride == 1) {
      std::memcpy(to, source, static_cast<size_t>(columns * kSize));
      to += columns * kSize;
      continue;
    }
    for (int64_t c = 0; c < columns; ++c) {
      move(source, to);
      source += column_stride * kSize;
      to += kSize;
    }
  }
}

}  // namespace

StridedLayout LayoutInOrder(const TensorView& view) {
  int64_t count = 0;
  if (IsContiguous(view, &count)) return Contiguous(view.data, count);
  StridedLayout layout;
  layout.data = static_cast<const char*>(view.data);
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (view.sizes[d] == 1) continue;
    layout.sizes.push_back(view.sizes[d]);
    layout.strides.push_back(view.strides[d]);
  }
  Coalesce(&layout);
  return layout;
}

StridedLayout LayoutInAnyOrder(const TensorView& view, size_t element_bytes) {
  int64_t count = 0;
  if (IsContiguous(view, &count)) return Contiguous(view.data, count);
  StridedLayout layout;
  layout.data = static_cast<const char*>(view.data);
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    const int64_t size = view.sizes[d];
    int64_t stride = view.strides[d];
    if (size == 1) continue;
    if (stride == 0) {
      layout.repeat *= size;
      continue;
    }
    if (stride < 0) {
      layout.data += (size - 1) * stride * static_cast<int64_t>(element_bytes);
      stride = -stride;
    }
    layout.sizes.push_back(size);
    layout.strides.push_back(stride);
    // Sorted by falling stride; views have few dimensions.
    for (size_t at = layout.sizes.size() - 1;
         at > 0 && layout.strides[at - 1] < layout.strides[at]; --at) {
      std::swap(layout.sizes[at - 1], layout.sizes[at]);
      std::swap(layout.strides[at - 1], layout.strides[at]);
    }
  }
  Coalesce(&layout);
  return layout;
}

namespace strided_layout_internal {

void Gather(const char* from, int64_t rows, int64_t columns, int64_t row_stride,
            int64_t column_stride, size_t element_bytes, char* to) {
  switch (element_bytes) {
    case 1:
      return GatherAs<uint8_t>(from, rows, columns, row_stride, column_stride,
                               to);
    case 2:
      return GatherAs<uint16_t>(from, rows, columns, row_stride, column_stride,
                                to);
    case 4:
      return GatherAs<uint32_t>(from, rows, columns, row_stride, column_stride,
                                to);
    case 8:
      return GatherAs<uint64_t>(from, rows, columns, row_stride, column_stride,
                                to);
    case 16:
      return GatherAs<Bytes16>(from, rows, columns, row_stride, column_stride,
                               to);
    default:
      std::abort();  // no dtype has another size
  }
}

bool Advance(const StridedLayout& layout, size_t element_bytes,
             StridedLayout::Extents* index, const char** at) {
  for (size_t d = index->size(); d-- > 0;) {
    const int64_t step =
        layout.strides[d] * static_cast<int64_t>(element_bytes);
    *at += step;
    if (++(*index)[d] < layout.sizes[d]) return true;
    *at -= step * layout.sizes[d];
    (*index)[d] = 0;
  }
  return false;
}

}  // namespace strided_layout_internal
}  // namespace rankprobe
