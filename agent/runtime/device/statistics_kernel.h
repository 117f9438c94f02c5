// SPDX-License-Identifier: Apache-2.0
// The statistics kernel: maximum, minimum, sum and sum of squares of a strided
// tensor in one pass. The same source is compiled for GPUs
// (statistics_kernel.cu, to PTX) and for the host (statistics_kernel_host.h),
// with the same order of additions, so both give the same bits.
//
// A launch of `blocks` blocks of kThreads threads leaves one Partial a block;
// thread 0 of block 0 writes the Header, from which the second kernel,
// FoldSlot, reads how many partials belong to a slot. Pure functions; no
// allocation, no synchronisation beyond a block.
#ifndef RANKPROBE_AGENT_RUNTIME_DEVICE_STATISTICS_KERNEL_H_
#define RANKPROBE_AGENT_RUNTIME_DEVICE_STATISTICS_KERNEL_H_

#include <stdint.h>

#ifdef __CUDA__
#define RANKPROBE_HOST_DEVICE __attribute__((host, device, always_inline))
#else
#define RANKPROBE_HOST_DEVICE
#endif

// Products are rounded before they are added, on the host and on a GPU alike:
// one compiler would contract the two operations and the other would not.
#pragma STDC FP_CONTRACT OFF

namespace rankprobe::device {

inline constexpr uint32_t kThreads = 256;
inline constexpr uint32_t kMaxBlocks = 1024;
inline constexpr uint32_t kMaxDimensions = 6;
// Bytes that a thread reads at once from aligned memory.
inline constexpr uint32_t kVectorBytes = 16;
// A tensor gets another block for each kUnitsOfThread vectors (or elements, if
// they are read one by one) of a thread.
inline constexpr uint32_t kUnitsOfThread = 2;

// Partial result of floating dtypes: sum_squares is NaN exactly when an element
// is NaN, and the extremes ignore NaNs.
struct FloatPartial {
  static constexpr bool kIsFloat = true;
  double max, min, sum, sum_squares;
};
struct IntPartial {
  static constexpr bool kIsFloat = false;
  int64_t max, min, unused[2];
};
static_assert(sizeof(FloatPartial) == 32 && sizeof(IntPartial) == 32);

// The partials of one slot; `partials` is an address on the device.
struct Header {
  uint64_t partials;
  uint32_t count;
  uint32_t is_float;
};

struct ReduceArguments {
  uint64_t data;
  // Number of units: vectors of kVectorBytes, or single elements.
  uint64_t units;
  // Elements after the last vector of contiguous memory, read one by one.
  uint64_t tail_data;
  uint32_t tail;
  // Innermost dimension first; 0 if the units are contiguous.
  uint32_t dimensions;
  // Strides in bytes.
  int64_t sizes[kMaxDimensions], strides[kMaxDimensions];
  // Addresses on the device.
  uint64_t partials, header;
};

struct FoldArguments {
  // Addresses on the device: Header[slots], Partial[slots].
  uint64_t headers, results;
};

struct Float16 {
  using Raw = uint16_t;
  using Partial = FloatPartial;
  RANKPROBE_HOST_DEVICE static float Value(Raw raw) {
    const uint32_t sign = static_cast<uint32_t>(raw & 0x8000) << 16;
    uint32_t bits = static_cast<uint32_t>(raw & 0x7fff) << 13;
    // Infinities and NaNs keep the largest exponent, which the product would
    // change.
    const bool finite = (raw & 0x7c00) != 0x7c00;
    if (!finite) bits |= 0x7f800000;
    const float value =
        __builtin_bit_cast(float, bits) * (finite ? 0x1p112F : 1.0F);
    return __builtin_bit_cast(float,
                              __builtin_bit_cast(uint32_t, value) | sign);
  }
};
struct Bfloat16 {
  using Raw = uint16_t;
  using Partial = FloatPartial;
  RANKPROBE_HOST_DEVICE static float Value(Raw raw) {
    return __builtin_bit_cast(float, static_cast<uint32_t>(raw) << 16);
  }
};
struct Float32 {
  using Raw = uint32_t;
  using Partial = FloatPartial;
  RANKPROBE_HOST_DEVICE static float Value(Raw raw) {
    return __builtin_bit_cast(float, raw);
  }
};
struct Float64 {
  using Raw = uint64_t;
  using Partial = FloatPartial;
  RANKPROBE_HOST_DEVICE static double Value(Raw raw) {
    return __builtin_bit_cast(double, raw);
  }
};
template <typename Unsigned, typename Integer>
struct Int {
  using Raw = Unsigned;
  using Partial = IntPartial;
  RANKPROBE_HOST_DEVICE static int64_t Value(Raw raw) {
    return static_cast<Integer>(raw);
  }
};
using Uint8 = Int<uint8_t, uint8_t>;
using Int8 = Int<uint8_t, int8_t>;
using Int16 = Int<uint16_t, int16_t>;
using Int32 = Int<uint32_t, int32_t>;
using Int64 = Int<uint64_t, int64_t>;

RANKPROBE_HOST_DEVICE inline void Clear(FloatPartial* p) {
  *p = {-__builtin_inf(), __builtin_inf(), 0, 0};
}
RANKPROBE_HOST_DEVICE inline void Clear(IntPartial* p) {
  *p = {INT64_MIN, INT64_MAX, {0, 0}};
}

// Values that a thread has accumulated, with the extremes in their own type.
template <typename Float>
struct Seen {
  Float max = -static_cast<Float>(__builtin_inf());
  Float min = static_cast<Float>(__builtin_inf());
  double sum = 0, sum_squares = 0;

  // Comparisons with a NaN are false, so a NaN changes no extreme. The square
  // of a float is exact as a double, so the fused addition rounds as a separate
  // one would.
  RANKPROBE_HOST_DEVICE void Add(Float value) {
    const double wide = value;
    max = value > max ? value : max;
    min = value < min ? value : min;
    sum = sum + wide;
    sum_squares = __builtin_fma(wide, wide, sum_squares);
  }
  RANKPROBE_HOST_DEVICE void To(FloatPartial* p) const {
    *p = {max, min, sum, sum_squares};
  }
};
template <>
struct Seen<int64_t> {
  int64_t max = INT64_MIN, min = INT64_MAX;

  RANKPROBE_HOST_DEVICE void Add(int64_t value) {
    max = value > max ? value : max;
    min = value < min ? value : min;
  }
  RANKPROBE_HOST_DEVICE void To(IntPartial* p) const {
    *p = {max, min, {0, 0}};
  }
};
template <typename Type>
using SeenOf = Seen<decltype(Type::Value(0))>;

RANKPROBE_HOST_DEVICE inline void Merge(const FloatPartial& from,
                                        FloatPartial* p) {
  p->max = from.max > p->max ? from.max : p->max;
  p->min = from.min < p->min ? from.min : p->min;
  p->sum = p->sum + from.sum;
  p->sum_squares = p->sum_squares + from.sum_squares;
}
RANKPROBE_HOST_DEVICE inline void Merge(const IntPartial& from, IntPartial* p) {
  p->max = from.max > p->max ? from.max : p->max;
  p->min = from.min < p->min ? from.min : p->min;
}

template <typename T>
struct Pointer {
  RANKPROBE_HOST_DEVICE static T* To(uint64_t address) {
    return reinterpret_cast<T*>(address);  // NOLINT: as the launch gives it
  }
};

// Adds kVector elements at `address`, which is a multiple of their size.
template <typename Type, uint32_t kVector>
RANKPROBE_HOST_DEVICE inline void AddVector(uint64_t address,
                                            SeenOf<Type>* seen) {
  using Raw = typename Type::Raw;
  if constexpr (kVector == 1) {
    seen->Add(Type::Value(*Pointer<const Raw>::To(address)));
  } else {
    static_assert(kVector * sizeof(Raw) == kVectorBytes);
    using Words = uint32_t __attribute__((ext_vector_type(4)));
    const Words words = *Pointer<const Words>::To(address);
    constexpr uint32_t kPerWord = 4 / sizeof(Raw);
#pragma unroll
    for (uint32_t w = 0; w < 4; ++w) {
      if constexpr (sizeof(Raw) == 8) {
        if (w % 2 == 1) continue;
        seen->Add(
            Type::Value(static_cast<uint64_t>(words[w + 1]) << 32 | words[w]));
      } else {
#pragma unroll
        for (uint32_t i = 0; i < kPerWord; ++i)
          seen->Add(
              Type::Value(static_cast<Raw>(words[w] >> 8 * sizeof(Raw) * i)));
      }
    }
  }
}

// The address of a unit of a strided tensor.
RANKPROBE_HOST_DEVICE inline uint64_t UnitAddress(const ReduceArguments& a,
                                                  uint64_t unit) {
  uint64_t address = a.data;
  // No unrolling: a driver translates these kernels at their first use, and
  // short code translates faster.
#pragma clang loop unroll(disable)
  for (uint32_t d = 0; d < a.dimensions; ++d) {
    const auto size = static_cast<uint64_t>(a.sizes[d]);
    uint64_t index;
    // A 32-bit division takes a third of the time of a 64-bit one.
    if ((unit | size) >> 32 == 0) {
      const auto narrow = static_cast<uint32_t>(unit);
      index = narrow % static_cast<uint32_t>(size);
      unit = narrow / static_cast<uint32_t>(size);
    } else {
      index = unit % size;
      unit = unit / size;
    }
    address += index * static_cast<uint64_t>(a.strides[d]);
  }
  return address;
}

// Reduces the units that belong to thread `thread` of block `block`.
template <typename Type, uint32_t kVector>
RANKPROBE_HOST_DEVICE inline void ReduceOfThread(const ReduceArguments& a,
                                                 uint32_t block,
                                                 uint32_t blocks,
                                                 uint32_t thread,
                                                 typename Type::Partial* out) {
  SeenOf<Type> seen;
  const uint64_t first = static_cast<uint64_t>(block) * kThreads + thread;
  const uint64_t step = static_cast<uint64_t>(blocks) * kThreads;
  if (a.dimensions == 0) {
    constexpr uint64_t kUnitBytes = kVector * sizeof(typename Type::Raw);
#pragma clang loop unroll(disable)
    for (uint64_t unit = first; unit < a.units; unit += step)
      AddVector<Type, kVector>(a.data + unit * kUnitBytes, &seen);
  } else {
#pragma clang loop unroll(disable)
    for (uint64_t unit = first; unit < a.units; unit += step)
      AddVector<Type, kVector>(UnitAddress(a, unit), &seen);
  }
  if (first < a.tail)
    AddVector<Type, 1>(a.tail_data + first * sizeof(typename Type::Raw), &seen);
  seen.To(out);
}

template <typename Partial>
RANKPROBE_HOST_DEVICE inline void FoldOfThread(const Header& header,
                                               uint32_t thread, Partial* out) {
  Partial p;
  Clear(&p);
#pragma clang loop unroll(disable)
  for (uint32_t i = thread; i < header.count; i += kThreads)
    Merge(Pointer<const Partial>::To(header.partials)[i], &p);
  *out = p;
}

}  // namespace rankprobe::device

#endif  // RANKPROBE_AGENT_RUNTIME_DEVICE_STATISTICS_KERNEL_H_
