// SPDX-License-Identifier: Apache-2.0
// Groups of ranks that hold copies of one parameter, separated from ranks that hold
// shards of it by the numbers alone: a program that shards its weights by hand
// declares nothing. Pure functions.
#ifndef RANKPROBE_ANALYSIS_ROOT_CAUSE_REPLICA_GROUPS_H_
#define RANKPROBE_ANALYSIS_ROOT_CAUSE_REPLICA_GROUPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace rankprobe::analysis {

// A tensor on the ranks that hold the same of it.
struct HeldTensor {
  std::vector<int64_t> ranks;
  // What it says of its content.
  std::string content;
  // 0: its numbers are not known, and it is like no other.
  double elements = 0;
  double largest = 0;
  double smallest = 0;
  double mean = 0;
  double norm = 0;
};

// Whether they are one tensor that changed a little, or in a few elements. Two
// shards of random weights are apart by what chance makes of so many elements.
bool AreCopies(const HeldTensor& a, const HeldTensor& b);

// Whether two ranks that hold these numbers hold one tensor: neither a few elements
// nor one number everywhere, as the shards of a bias begin with, are alike by chance.
bool IsOfOneTensor(const HeldTensor& a);

// Groups of replicas: the division of ranks that most rows with several contents
// have, in groups of one size of at least 2. Empty: no row has one.
std::vector<std::vector<int64_t>> GroupsOfRows(
    absl::Span<const std::vector<HeldTensor>> rows);

enum class HeldAs {
  kReplicas,  // copies that differ
  kShards     // as far as can be told
};
// Of a row with several contents.
HeldAs JudgeHeld(const std::vector<HeldTensor>& row,
                 const std::vector<std::vector<int64_t>>& groups);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_REPLICA_GROUPS_H_
