// SPDX-License-Identifier: Apache-2.0
// Groups of ranks that hold copies of one parameter. Only the numbers
// distinguish them from ranks that hold shards of it, because a program that
// shards its weights by hand declares nothing. Pure functions.
#ifndef RANKPROBE_ANALYSIS_ROOT_CAUSE_REPLICA_GROUPS_H_
#define RANKPROBE_ANALYSIS_ROOT_CAUSE_REPLICA_GROUPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace rankprobe::analysis {

// A tensor together with the ranks that hold equal content of it.
struct HeldTensor {
  std::vector<int64_t> ranks;
  // Text that describes its content.
  std::string content;
  // 0 if its numbers are unknown; it is then not similar to any tensor.
  double elements = 0;
  double largest = 0;
  double smallest = 0;
  double mean = 0;
  double norm = 0;
};

// Whether both are one tensor that changed slightly or in a few elements. Two
// shards of random weights differ by the statistical spread for their number of
// elements.
bool AreCopies(const HeldTensor& a, const HeldTensor& b);

// Whether two ranks that hold these numbers must hold one tensor. Tensors of
// few elements, or with the same number everywhere, such as the initial shards
// of a bias, can be equal by chance.
bool IsOfOneTensor(const HeldTensor& a);

// Returns the groups of replicas: the division of ranks that is most frequent
// among rows with several contents, into groups of one size of at least 2.
// Empty if no row has such a division.
std::vector<std::vector<int64_t>> GroupsOfRows(
    absl::Span<const std::vector<HeldTensor>> rows);

enum class HeldAs {
  kReplicas,  // copies that differ
  kShards     // as far as the numbers show
};
// Judges a row with several contents.
HeldAs JudgeHeld(const std::vector<HeldTensor>& row,
                 const std::vector<std::vector<int64_t>>& groups);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_REPLICA_GROUPS_H_
