// SPDX-License-Identifier: Apache-2.0
// Block kernels behind Summarize. Each instruction set compiles the same text
// (kernels.inc) into its own table; BestKernels() picks one for this CPU.
// Pure functions on contiguous, possibly unaligned memory; thread-safe.
#ifndef RANKPROBE_COMMON_TENSOR_KERNELS_KERNELS_H_
#define RANKPROBE_COMMON_TENSOR_KERNELS_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <limits>

namespace rankprobe::kernels {

// Accumulated over the blocks of one tensor. sum_squares is NaN exactly when
// an element is NaN: squares are never negative, so infinities cannot cancel.
struct FloatStats {
  double max = -std::numeric_limits<double>::infinity();
  double min = std::numeric_limits<double>::infinity();
  double sum = 0;
  double sum_squares = 0;
};

struct IntStats {
  int64_t max = std::numeric_limits<int64_t>::min();
  int64_t min = std::numeric_limits<int64_t>::max();
  // Not set by the kernels: summary.cc computes them on request.
  double sum = 0;
  double sum_squares = 0;
};

// Formats of numbers in memory, for `widen`.
enum class Number : uint8_t {
  kF32,
  kF64,
  kF16,
  kBf16,
  kI8,
  kU8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kBool
};

// Requested statistics process elements in pieces of this size, converted to
// doubles that fit the first-level cache.
inline constexpr size_t kPiece = 512;

// Part of a tensor. `im` is null for real numbers.
struct Piece {
  const double* re;
  const double* im;
  size_t count;
};

struct ElementCounts {
  uint64_t nan = 0, inf = 0, zero = 0;
};

// Mean, and sum of the squared distances from it (Chan, Golub, LeVeque 1979).
struct Moments {
  double count = 0, mean = 0, distances = 0;
};

struct Table {
  const char* name;
  void (*f32)(const void* data, size_t count, FloatStats* stats);
  void (*f64)(const void* data, size_t count, FloatStats* stats);
  void (*f16)(const void* data, size_t count, FloatStats* stats);
  void (*bf16)(const void* data, size_t count, FloatStats* stats);
  void (*i8)(const void* data, size_t count, IntStats* stats);
  void (*u8)(const void* data, size_t count, IntStats* stats);
  void (*i16)(const void* data, size_t count, IntStats* stats);
  void (*u16)(const void* data, size_t count, IntStats* stats);
  void (*i32)(const void* data, size_t count, IntStats* stats);
  void (*u32)(const void* data, size_t count, IntStats* stats);
  void (*i64)(const void* data, size_t count, IntStats* stats);
  // Converts `count` numbers to doubles.
  void (*widen)(Number number, const void* data, size_t count, double* out);
  void (*counts)(const Piece& piece, ElementCounts* counts);
  // Adds the real or the imaginary parts of a piece; `count` is at least 1.
  void (*moments)(const double* values, size_t count, Moments* moments);
  // XOR of little-endian 64-bit words, zero-padded at the end.
  uint64_t (*xor64)(const void* data, size_t bytes);
  // Copies with non-temporal stores, for memory that this processor will not
  // read soon: the destination is not read from memory first, and other data
  // stays in the caches. The stores are ordered before later stores of the
  // caller.
  void (*copy_past_caches)(void* to, const void* from, size_t bytes);
  // XXH3-128 streaming over a state of kDigestStateBytes, 64-byte aligned.
  void (*digest_init)(void* state);
  void (*digest_update)(void* state, const void* data, size_t bytes);
  void (*digest_finish)(void* state, uint8_t out[16]);
};

inline constexpr size_t kDigestStateBytes = 640;

// Tables that this CPU can run, best first; the last one is always the
// baseline.
const Table* const* UsableTables(size_t* count);
const Table& BestKernels();

extern const Table kBaselineTable;
// x86-64 only.
extern const Table kAvx2Table;
extern const Table kAvx512Table;

}  // namespace rankprobe::kernels

#endif  // RANKPROBE_COMMON_TENSOR_KERNELS_KERNELS_H_
