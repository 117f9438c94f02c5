// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/facts.h"

#include <xxhash.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace rankprobe::sim {
namespace {

Payload Make(uint64_t seed, size_t size) {
  Payload payload;
  payload.data.resize(size);
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (size_t at = 0; at + 8 <= size; at += 8) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(payload.data.data() + at, &state, 8);
  }
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(
      &canonical, XXH3_128bits(payload.data.data(), payload.data.size()));
  std::memcpy(payload.digest.data(), canonical.digest, 16);
  return payload;
}

}  // namespace

std::string EntryOf(int call) {
  return absl::StrCat("Torch.op.", call, ".forward");
}

std::vector<Payload> PayloadsOf(int64_t rank, int64_t step) {
  const auto r = static_cast<uint64_t>(rank), s = static_cast<uint64_t>(step);
  std::vector<Payload> payloads;
  payloads.push_back(Make(s / 3 * 1000003 + 17, 6000));
  const uint64_t own = r * 7919 + s * 104729 + 1;
  payloads.push_back(Make(
      own, own % 23 == 0 ? (1 << 20) + own % 4096 * 8 : 64 + own % 2048 * 8));
  return payloads;
}

}  // namespace rankprobe::sim
