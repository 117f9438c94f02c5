// SPDX-License-Identifier: Apache-2.0
// A block of a rollup: the statistics of up to 64 neighbouring values of one
// process' step, by columns (docs/storage.md, "Rollups"). Values are read back
// bit for bit, except the bits of a NaN; missing ones stay missing. Plain
// values, one thread at a time.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_ROLLUP_BLOCK_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_ROLLUP_BLOCK_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/store/number_column.h"
#include "collector/store/series_writer.h"
#include "dump_format/statistics.h"

namespace rankprobe {

inline constexpr uint32_t kRollupBlockValues = 64;

class RollupBlockWriter {
 public:
  // Requires `slot` < kRollupBlockValues. Each statistic of a slot is put once.
  void Put(uint32_t slot, Stat stat, double value);
  // Appends a row for each statistic that has values.
  void AppendTo(uint32_t block, std::vector<RollupColumnRow>* rows) const;

 private:
  struct Column {
    uint64_t present = 0;
    std::array<double, kRollupBlockValues> values{};
  };
  static void EncodeColumn(size_t stat, const Column& column, std::string* out);
  PerStat<Column> columns_{};
};

// One statistic of a block. A view of bytes that outlive it.
class RollupColumn {
 public:
  // DATA_LOSS if the bytes are not a row of that statistic.
  static absl::StatusOr<RollupColumn> Parse(absl::string_view row, Stat stat);
  // Returns a mask with the bit of each slot that has a value.
  uint64_t present() const { return present_; }
  // Returns the value of a slot that has one.
  double At(uint32_t slot) const;

 private:
  uint64_t present_ = 0;
  size_t width_ = 0;
  NumberColumn numbers_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_ROLLUP_BLOCK_H_
