// SPDX-License-Identifier: Apache-2.0
// The memory of a strided view in its simplest form: neighbouring dimensions
// that are contiguous are merged. Views of one memory that hold the same
// elements (reshapes, and in any order transposes and expansions) get the same
// layout. Pure functions; no allocation up to six dimensions.
#ifndef RANKPROBE_COMMON_TENSOR_STRIDED_LAYOUT_H_
#define RANKPROBE_COMMON_TENSOR_STRIDED_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "common/tensor/tensor_view.h"

namespace rankprobe {

struct StridedLayout {
  using Extents = absl::InlinedVector<int64_t, 6>;
  const char* data = nullptr;
  // Outermost dimension first; in elements. Empty for one element. No size is
  // 1.
  Extents sizes, strides;
  // How often each element counts (expanded dimensions); 1 if order matters.
  int64_t repeat = 1;

  bool contiguous() const {
    return sizes.empty() || (sizes.size() == 1 && strides[0] == 1);
  }
};

// Returns a layout with the same elements in the same order. `view` must not be
// empty.
StridedLayout LayoutInOrder(const TensorView& view);

// Returns a layout with the same elements, `repeat` times each, in memory
// order.
StridedLayout LayoutInAnyOrder(const TensorView& view, size_t element_bytes);

// Fits the first-level cache together with the state of the kernels that read
// it.
inline constexpr size_t kCacheBlockBytes = 32 << 10;

// Calls fn(const char* data, size_t bytes) for blocks that together are the
// layout's elements, without repetition. Blocks have at most `block_bytes`, or
// kCacheBlockBytes if elements must be collected; all but the last are
// multiples of 8 bytes. fn returns false to stop.
template <typename Fn>
void ForEachBlock(const StridedLayout& layout, size_t element_bytes,
                  const Fn& fn, size_t block_bytes = kCacheBlockBytes);

namespace strided_layout_internal {

// A last piece that is not a multiple of this is moved to the next block.
inline constexpr size_t kGranule = 64;

// Copies a matrix of elements into rows without gaps.
void Gather(const char* from, int64_t rows, int64_t columns, int64_t row_stride,
            int64_t column_stride, size_t element_bytes, char* to);

// Collects pieces into blocks.
template <typename Fn>
class Collector {
 public:
  explicit Collector(const Fn& fn) : fn_(fn) {}
  // Returns space for `bytes` <= kCacheBlockBytes, or null if fn stopped.
  char* Room(size_t bytes) {
    if (used_ + bytes > kCacheBlockBytes + kGranule && !Flush()) return nullptr;
    char* const room = block_ + used_;
    used_ += bytes;
    return room;
  }
  void Finish() {
    if (used_ > 0) fn_(static_cast<const char*>(block_), used_);
  }

 private:
  bool Flush() {
    const size_t whole = used_ / kGranule * kGranule;
    if (!fn_(static_cast<const char*>(block_), whole)) return false;
    used_ -= whole;
    __builtin_memcpy(block_, block_ + whole, used_);
    return true;
  }

  const Fn& fn_;
  size_t used_ = 0;
  alignas(64) char block_[kCacheBlockBytes + kGranule];
};

// Splits contiguous memory; returns false if fn stopped.
template <typename Fn>
bool Cut(const char* data, uint64_t bytes, size_t block_bytes, const Fn& fn) {
  for (uint64_t done = 0; done < bytes;) {
    const size_t n = bytes - done < block_bytes
                         ? static_cast<size_t>(bytes - done)
                         : block_bytes;
    if (!fn(data + done, n)) return false;
    done += n;
  }
  return true;
}

// Advances to the next index of all but the two innermost dimensions, and its
// address; returns false after the last.
bool Advance(const StridedLayout& layout, size_t element_bytes,
             StridedLayout::Extents* index, const char** at);

}  // namespace strided_layout_internal

template <typename Fn>
void ForEachBlock(const StridedLayout& layout, size_t element_bytes,
                  const Fn& fn, size_t block_bytes) {
  namespace in = strided_layout_internal;
  const size_t dims = layout.sizes.size();
  if (layout.contiguous()) {
    in::Cut(layout.data,
            (dims == 0 ? 1 : static_cast<uint64_t>(layout.sizes[0])) *
                element_bytes,
            block_bytes, fn);
    return;
  }
  const int64_t columns = layout.sizes[dims - 1],
                column_stride = layout.strides[dims - 1],
                rows = dims > 1 ? layout.sizes[dims - 2] : 1,
                row_stride = dims > 1 ? layout.strides[dims - 2] : 0;
  const uint64_t row_bytes = static_cast<uint64_t>(columns) * element_bytes;
  const int64_t row_step = row_stride * static_cast<int64_t>(element_bytes);
  StridedLayout::Extents index(dims > 2 ? dims - 2 : 0, 0);
  const char* at = layout.data;
  if (column_stride == 1 && row_bytes >= 1024 && row_bytes % 8 == 0) {
    // Long rows are read in place.
    do {
      for (int64_t r = 0; r < rows; ++r) {
        if (!in::Cut(at + r * row_step, row_bytes, block_bytes, fn)) return;
      }
    } while (in::Advance(layout, element_bytes, &index, &at));
    return;
  }
  in::Collector<Fn> collector(fn);
  const int64_t block_elements =
      static_cast<int64_t>(kCacheBlockBytes / element_bytes);
  const int64_t columns_at_once =
      columns < block_elements ? columns : block_elements;
  const int64_t rows_at_once =
      columns < block_elements ? block_elements / columns : 1;
  do {
    for (int64_t r = 0; r < rows; r += rows_at_once) {
      const int64_t row_count =
          rows - r < rows_at_once ? rows - r : rows_at_once;
      for (int64_t c = 0; c < columns; c += columns_at_once) {
        const int64_t column_count =
            columns - c < columns_at_once ? columns - c : columns_at_once;
        char* const room = collector.Room(
            static_cast<size_t>(row_count * column_count) * element_bytes);
        if (room == nullptr) return;
        in::Gather(at + r * row_step +
                       c * column_stride * static_cast<int64_t>(element_bytes),
                   row_count, column_count, row_stride, column_stride,
                   element_bytes, room);
      }
    }
  } while (in::Advance(layout, element_bytes, &index, &at));
  collector.Finish();
}

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TENSOR_STRIDED_LAYOUT_H_
