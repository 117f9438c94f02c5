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
  // Not the kernels': summary.cc adds them up where they are asked for.
  double sum = 0;
  double sum_squares = 0;
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
  // XOR of little-endian 64-bit words, zero-padded at the end.
  uint64_t (*xor64)(const void* data, size_t bytes);
  // XXH3-128 streaming over a state of kDigestStateBytes, 64-byte aligned.
  void (*digest_init)(void* state);
  void (*digest_update)(void* state, const void* data, size_t bytes);
  void (*digest_finish)(void* state, uint8_t out[16]);
};

inline constexpr size_t kDigestStateBytes = 640;

// Tables this CPU can run, best first; the last one is always the baseline.
const Table* const* UsableTables(size_t* count);
const Table& BestKernels();

extern const Table kBaselineTable;
// x86-64 only.
extern const Table kAvx2Table;
extern const Table kAvx512Table;

}  // namespace rankprobe::kernels

#endif  // RANKPROBE_COMMON_TENSOR_KERNELS_KERNELS_H_
