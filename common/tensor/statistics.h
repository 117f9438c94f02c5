// SPDX-License-Identifier: Apache-2.0
// The statistics that are stored for a tensor: msprobe's four, and those that
// config.json may request in addition ("extra_statistics"). docs/formats.md,
// "Statistics", has the rules of each. Plain values.
#ifndef RANKPROBE_COMMON_TENSOR_STATISTICS_H_
#define RANKPROBE_COMMON_TENSOR_STATISTICS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

enum class Precision { kLow, kHigh };

struct StatValue {
  enum class Kind : uint8_t { kNull, kFloat, kInt, kBool };
  Kind kind = Kind::kNull;
  union {
    double f;
    int64_t i;
    bool b;
  };
  StatValue() : f(0) {}
  static StatValue Float(double v);
  static StatValue Int(int64_t v);
  static StatValue Bool(bool v);
};

struct ExtraStatistic {
  v1::StatisticId id;
  // The word of config.json that requests it, possibly together with others.
  absl::string_view word;
};
// All extra statistics, in the order of dump.json.
inline constexpr std::array kExtraStatistics = {
    ExtraStatistic{v1::STATISTIC_ID_NAN_COUNT, "counts"},
    ExtraStatistic{v1::STATISTIC_ID_INF_COUNT, "counts"},
    ExtraStatistic{v1::STATISTIC_ID_ZERO_COUNT, "counts"},
    ExtraStatistic{v1::STATISTIC_ID_STD, "std"},
};

// Some of kExtraStatistics.
class ExtraSet {
 public:
  bool empty() const { return bits_ == 0; }
  bool Has(v1::StatisticId id) const { return (bits_ >> id & 1) != 0; }
  // Adds the statistics that `word` requests; returns false for an unknown
  // word.
  bool AddWord(absl::string_view word);
  // The words passed to AddWord, each once.
  std::vector<absl::string_view> Words() const;
  std::vector<v1::StatisticId> Ids() const;

 private:
  uint32_t bits_ = 0;
};
// All words, each once.
std::vector<absl::string_view> ExtraStatisticWords();

struct ExtraValue {
  v1::StatisticId id;
  StatValue value;
};

struct Statistics {
  StatValue max, min, mean, norm;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TENSOR_STATISTICS_H_
