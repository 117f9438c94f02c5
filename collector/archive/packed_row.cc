// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/packed_row.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

namespace rankprobe {

bool PackFloats(absl::Span<const double> numbers,
                absl::Span<const uint32_t> counts, std::string* out) {
  std::string packed;
  packed.reserve(numbers.size() * sizeof(float));
  out->clear();
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double number =
        counts[i] == 0 ? std::numeric_limits<double>::quiet_NaN() : numbers[i];
    if (std::isfinite(number) &&
        std::abs(number) > std::numeric_limits<float>::max())
      return false;
    const auto narrow = static_cast<float>(number);
    if (narrow == 0 && number != 0) return false;
    uint32_t bits = 0;
    std::memcpy(&bits, &narrow, sizeof(bits));
    for (int shift = 0; shift < 32; shift += 8)
      packed.push_back(static_cast<char>(bits >> shift & 0xff));
  }
  *out = std::move(packed);
  return true;
}

void PackRow(v1::GridRow* row) {
  if (PackFloats(row->cells(), row->counts(), row->mutable_packed()))
    row->clear_cells();
}

}  // namespace rankprobe
