// SPDX-License-Identifier: Apache-2.0
// Load of the benchmarks: records as a training step makes
// them, payload bytes that no compressor or deduplication can shrink, and a
// directory that goes away.
#ifndef RANKPROBE_TESTS_BENCH_LOAD_H_
#define RANKPROBE_TESTS_BENCH_LOAD_H_

#include <xxhash.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/testing/scratch_directory.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe::bench {

// Inputs of one forward call: two tensors with statistics, and a scalar.
inline void FillRecord(uint64_t order, v1::Record* record) {
  record->set_order(order);
  v1::CallPhase* call = record->mutable_call();
  call->set_entry(absl::StrCat("Functional.linear.", order, ".forward"));
  call->set_kind(v1::CALL_KIND_API_FORWARD);
  call->mutable_input_kwargs();
  for (int i = 0; i < 2; ++i) {
    v1::TensorSummary* tensor =
        call->mutable_input_args()->add_items()->mutable_tensor();
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    tensor->add_shape(4);
    tensor->add_shape(96);
    tensor->add_shape(192);
    const double base = static_cast<double>(order * 2 + i) * 0.37;
    tensor->mutable_stats()->set_max_f(base + 1);
    tensor->mutable_stats()->set_min_f(base - 1);
    tensor->mutable_stats()->set_mean_f(base);
    tensor->mutable_stats()->set_norm_f(base * 3);
    tensor->set_requires_grad(true);
  }
  v1::ScalarValue* scalar =
      call->mutable_input_args()->add_items()->mutable_scalar();
  scalar->set_type("bool");
  scalar->set_b(false);
}

// Different for each seed; eight bytes a step of a counter-based generator.
inline void FillPayload(uint64_t seed, char* data, size_t bytes) {
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    state += 0x9e3779b97f4a7c15;
    uint64_t z = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
    z ^= z >> 27;
    std::memcpy(data + i, &z, 8);
  }
}

inline std::array<uint8_t, 16> DigestOf(absl::string_view data) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data.data(), data.size()));
  std::array<uint8_t, 16> digest;
  std::memcpy(digest.data(), canonical.digest, digest.size());
  return digest;
}

// A fresh directory under RANKPROBE_BENCH_DIR, else TMPDIR, else /tmp: on the
// disk that is to be measured. Removed in the end.
class ScratchDirectory : public testing::ScratchDirectory {
 public:
  ScratchDirectory() : testing::ScratchDirectory(Pattern()) {}

 private:
  static std::string Pattern() {
    const char* root = std::getenv("RANKPROBE_BENCH_DIR");
    if (root == nullptr) root = std::getenv("TMPDIR");
    return absl::StrCat(root == nullptr ? "/tmp" : root,
                        "/rankprobe-benchXXXXXX");
  }
};

}  // namespace rankprobe::bench

#endif  // RANKPROBE_TESTS_BENCH_LOAD_H_
