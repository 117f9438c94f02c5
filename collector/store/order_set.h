// SPDX-License-Identifier: Apache-2.0
// The orders of records that one commit adds to a step. Value type, not
// thread-safe. Almost always it is one range; then both calls take constant
// time.
#ifndef RANKPROBE_COLLECTOR_STORE_ORDER_SET_H_
#define RANKPROBE_COLLECTOR_STORE_ORDER_SET_H_

#include <cstdint>
#include <iterator>
#include <map>

namespace rankprobe {

class OrderSet {
 public:
  bool Contains(uint64_t order) const {
    const auto after = ends_.upper_bound(order);
    return after != ends_.begin() && order < std::prev(after)->second;
  }

  // Adds an order that is not in the set and is below 2^64 - 1.
  void Add(uint64_t order) {
    const auto after = ends_.upper_bound(order);
    if (after != ends_.begin() && std::prev(after)->second == order) {
      ++std::prev(after)->second;
    } else {
      ends_.emplace_hint(after, order, order + 1);
    }
  }

 private:
  // Maps the first order of a range to the one after its last.
  std::map<uint64_t, uint64_t> ends_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_ORDER_SET_H_
