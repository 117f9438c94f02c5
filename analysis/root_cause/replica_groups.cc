// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause/replica_groups.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace rankprobe::analysis {
namespace {

// Fraction of the difference that chance causes between two shards.
constexpr double kAlike = 0.05;
// With fewer elements, tensors agree by chance.
constexpr double kLeastElements = 16;

// Whether all elements have one absolute value: the first steps of Adam move
// each element of a bias by the same amount, so all shards of it have equal
// numbers.
bool IsOfOneSize(const HeldTensor& a) {
  if (a.largest == a.smallest) return true;
  const double each = a.norm / std::sqrt(a.elements);
  const double most = std::max(std::fabs(a.largest), std::fabs(a.smallest));
  return each > 0.9 * most && std::fabs(a.mean) < 0.5 * each;
}

// Whether a float32 has more digits than 16-bit types keep: two such numbers
// are not equal by chance.
bool IsLongNumber(double value) {
  if (!std::isfinite(value) || value == 0) return false;
  int exponent = 0;
  const double bits = std::ldexp(std::frexp(value, &exponent), 12);
  return bits != std::floor(bits);
}

std::vector<std::vector<int64_t>> RanksOf(const std::vector<HeldTensor>& row) {
  std::vector<std::vector<int64_t>> out;
  out.reserve(row.size());
  for (const HeldTensor& held : row) out.push_back(held.ranks);
  std::sort(out.begin(), out.end());
  return out;
}

bool AreOfOneSize(const std::vector<std::vector<int64_t>>& groups) {
  return std::all_of(groups.begin(), groups.end(), [&](const auto& group) {
    return group.size() == groups[0].size();
  });
}

}  // namespace

bool IsOfOneTensor(const HeldTensor& a) {
  return a.elements >= kLeastElements && !IsOfOneSize(a);
}

bool AreCopies(const HeldTensor& a, const HeldTensor& b) {
  if (a.elements != b.elements || !IsOfOneTensor(a) || !IsOfOneTensor(b))
    return false;
  if ((a.largest == b.largest && IsLongNumber(a.largest)) ||
      (a.smallest == b.smallest && IsLongNumber(a.smallest)))
    return true;
  const double norm = std::max(a.norm, b.norm);
  if (!std::isfinite(norm) || norm == 0) return false;
  const double each = norm / std::sqrt(a.elements);
  return std::fabs(a.norm - b.norm) < kAlike * each &&
         std::fabs(a.mean - b.mean) < kAlike * each / std::sqrt(a.elements);
}

std::vector<std::vector<int64_t>> GroupsOfRows(
    absl::Span<const std::vector<HeldTensor>> rows) {
  std::map<std::vector<std::vector<int64_t>>, size_t> count;
  for (const std::vector<HeldTensor>& row : rows) {
    if (row.size() < 2) continue;
    const auto ranks = RanksOf(row);
    if (ranks[0].size() >= 2 && AreOfOneSize(ranks)) ++count[ranks];
  }
  const auto most = std::max_element(
      count.begin(), count.end(),
      [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == count.end() ? std::vector<std::vector<int64_t>>()
                             : most->first;
}

HeldAs JudgeHeld(const std::vector<HeldTensor>& row,
                 const std::vector<std::vector<int64_t>>& groups) {
  for (size_t i = 0; i < row.size(); ++i) {
    for (size_t j = i + 1; j < row.size(); ++j) {
      if (AreCopies(row[i], row[j])) return HeldAs::kReplicas;
    }
  }
  // Checksums alone do not distinguish replicas from shards.
  if (row.empty() || row[0].elements == 0) return HeldAs::kReplicas;
  const auto ranks = RanksOf(row);
  // Shards have equal sizes, and so have the groups that hold the same shard.
  if (!AreOfOneSize(ranks)) return HeldAs::kReplicas;
  for (const std::vector<int64_t>& group : groups) {
    size_t parts = 0;
    for (const std::vector<int64_t>& own : ranks) {
      const bool any = std::any_of(own.begin(), own.end(), [&](int64_t rank) {
        return std::find(group.begin(), group.end(), rank) != group.end();
      });
      parts += any ? 1 : 0;
    }
    if (parts > 1) return HeldAs::kReplicas;
  }
  return HeldAs::kShards;
}

}  // namespace rankprobe::analysis
