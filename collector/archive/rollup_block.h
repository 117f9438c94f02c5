// SPDX-License-Identifier: Apache-2.0
// A block of a rollup: the statistics of up to 64 neighbouring values of one
// process' step, by columns (docs/formats.md, "Rollups"). What is read back is
// what was put in, bit by bit but for the bits of a NaN; what is missing stays
// missing. Plain values, one thread at a time.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_ROLLUP_BLOCK_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_ROLLUP_BLOCK_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dump_format/statistics.h"

namespace rankprobe {

inline constexpr uint32_t kRollupBlockValues = 64;

class RollupBlockWriter {
 public:
  // `slot` < kRollupBlockValues; a statistic of a slot once.
  void Put(uint32_t slot, Stat stat, double value);
  std::string Encode() const;

 private:
  struct Column {
    uint64_t present = 0;
    std::array<double, kRollupBlockValues> values{};
  };
  PerStat<Column> columns_{};
};

// One statistic of a block.
struct RollupColumn {
  // Bit of each slot that has it.
  uint64_t present = 0;
  std::array<double, kRollupBlockValues> values{};
};
// DATA_LOSS where the bytes are not a block.
absl::Status DecodeRollupBlock(absl::string_view bytes, Stat stat,
                               RollupColumn* column);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_ROLLUP_BLOCK_H_
