// SPDX-License-Identifier: Apache-2.0
// A set of orders of records, as ranges: those of a rank are dense. Plain
// value.
#ifndef RANKPROBE_COLLECTOR_SEALED_ORDER_RANGES_H_
#define RANKPROBE_COLLECTOR_SEALED_ORDER_RANGES_H_

#include <cstdint>
#include <iterator>
#include <map>

namespace rankprobe {

class OrderRanges {
 public:
  bool Contains(uint64_t order) const {
    const auto after = ranges_.upper_bound(order);
    return after != ranges_.begin() && std::prev(after)->second >= order;
  }
  // Requires `first` <= `last`.
  void Add(uint64_t first, uint64_t last) {
    auto it = ranges_.upper_bound(first);
    if (it != ranges_.begin()) {
      const auto before = std::prev(it);
      // Adjacent ranges are merged. UINT64_MAX has no successor, so nothing is
      // adjacent to it.
      if (before->second >= first ||
          (first > 0 && before->second == first - 1)) {
        first = before->first;
        last = before->second > last ? before->second : last;
        it = ranges_.erase(before);
      }
    }
    while (it != ranges_.end() &&
           (it->first <= last || (it->first > 0 && it->first - 1 == last))) {
      last = it->second > last ? it->second : last;
      it = ranges_.erase(it);
    }
    ranges_[first] = last;
  }
  // Returns the ranges: last by first.
  const std::map<uint64_t, uint64_t>& ranges() const { return ranges_; }

 private:
  std::map<uint64_t, uint64_t> ranges_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_ORDER_RANGES_H_
