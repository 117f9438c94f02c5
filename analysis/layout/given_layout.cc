// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/given_layout.h"

#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/text/glob.h"

namespace rankprobe::analysis {
namespace {

// Turns ".input_kwargs.mask" into "input.mask", as in row names, and names the
// gradients of parameters "grads.weight".
std::string Position(absl::string_view entry, absl::string_view place) {
  absl::ConsumePrefix(&place, ".");
  if (absl::StrContains(entry, ".parameters_grad")) {
    return absl::StrCat("grads.", place);
  }
  for (const absl::string_view key : {"input_args", "input_kwargs"}) {
    if (absl::ConsumePrefix(&place, key)) return absl::StrCat("input", place);
  }
  return std::string(place);
}

// Whether the pattern matches all of the text or a prefix of it.
bool Fits(const std::string& pattern, absl::string_view text) {
  return GlobMatches(pattern, text) ||
         GlobMatches(absl::StrCat(pattern, ".*"), text);
}

bool Fits(const PlacementRule& rule, const GivenLayout::Call& call,
          absl::string_view place) {
  if (!Fits(rule.entry, call.name) ||
      (!rule.inside.empty() && !Fits(rule.inside, call.parent))) {
    return false;
  }
  if (rule.at.empty()) return true;
  const std::string position = Position(call.name, place);
  return absl::c_any_of(
      rule.at, [&](const std::string& at) { return Fits(at, position); });
}

}  // namespace

absl::Status GivenLayout::CheckRanks(absl::string_view run,
                                     absl::Span<const DumpPlace> ranks) const {
  const int64_t wanted = side_.ranks();
  const auto bad = [&](const std::string& what) {
    std::vector<std::string> sizes;
    for (const SideLayout::Dimension& one : side_.mesh) {
      sizes.push_back(absl::StrCat(one.name, " ", one.size));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        file_, ": line ", side_.line, ": ", absl::StrJoin(sizes, " x "), " is ",
        wanted, wanted == 1 ? " rank, " : " ranks, ", run, " has ", what));
  };
  std::set<int64_t> recorded;
  for (const DumpPlace& place : ranks) {
    if (place.rank >= wanted) return bad(absl::StrCat("a rank ", place.rank));
    recorded.insert(place.rank);
  }
  for (int64_t rank = 0; rank < wanted; ++rank) {
    if (!recorded.contains(rank)) return bad(absl::StrCat("no rank ", rank));
  }
  return absl::OkStatus();
}

DeviceMesh GivenLayout::MeshOf(int64_t rank,
                               const std::vector<size_t>& dimensions) const {
  std::vector<int64_t> strides(side_.mesh.size(), 1);
  for (size_t d = strides.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * side_.mesh[d].size;
  }
  DeviceMesh out;
  int64_t first = rank;
  for (const size_t d : dimensions) {
    const int64_t size = side_.mesh[d].size;
    out.shape.push_back(size);
    first -= rank / strides[d] % size * strides[d];
  }
  out.ranks = {first};
  for (const size_t d : dimensions) {
    std::vector<int64_t> wider;
    for (const int64_t at : out.ranks) {
      for (int64_t i = 0; i < side_.mesh[d].size; ++i) {
        wider.push_back(at + i * strides[d]);
      }
    }
    out.ranks = std::move(wider);
  }
  return out;
}

std::map<int64_t, int64_t> GivenLayout::ModelGroups() const {
  std::vector<size_t> dimensions;
  for (size_t d = 0; d < side_.mesh.size(); ++d) {
    if (!side_.mesh[d].data && !side_.mesh[d].pipeline) dimensions.push_back(d);
  }
  std::map<int64_t, int64_t> out;
  for (int64_t rank = 0; rank < side_.ranks(); ++rank) {
    out[rank] = MeshOf(rank, dimensions).ranks[0];
  }
  return out;
}

const PlacementRule* GivenLayout::Find(const Call& call,
                                       absl::string_view place) {
  const auto rule = absl::c_find_if(
      side_.rules, [&](const auto& one) { return Fits(one, call, place); });
  if (rule == side_.rules.end()) return nullptr;
  used_[static_cast<size_t>(rule - side_.rules.begin())] = true;
  return &*rule;
}

std::string GivenLayout::WhyLocal(const Call& call, absl::string_view place) {
  const PlacementRule* const rule = Find(call, place);
  if (rule == nullptr || !rule->local) return "";
  return absl::StrCat("each rank's own, by ", NameOf(*rule));
}

absl::StatusOr<const PlacementRule*> GivenLayout::Place(const Call& call,
                                                        absl::string_view place,
                                                        TensorPart* part) {
  const PlacementRule* const rule = Find(call, place);
  if (rule == nullptr) return nullptr;
  if (part->mesh.has_value()) return nullptr;
  if (rule->local) {
    return absl::FailedPreconditionError(WhyLocal(call, place));
  }
  std::vector<size_t> dimensions;
  for (const auto& [dimension, given] : rule->placements) {
    Placement placement = given;
    const auto size = static_cast<int64_t>(part->shape.size());
    if (placement.dim < 0) placement.dim += size;
    if (placement.kind == Placement::Kind::kShard &&
        (placement.dim < 0 || placement.dim >= size)) {
      return absl::FailedPreconditionError(
          absl::StrCat("shard(", given.dim, ") of ", NameOf(*rule),
                       " is not a dimension of ", SizesText(part->shape)));
    }
    dimensions.push_back(dimension);
    part->placements.push_back(std::move(placement));
  }
  part->mesh = MeshOf(part->rank, dimensions);
  return rule;
}

std::string GivenLayout::NameOf(const PlacementRule& rule) const {
  return absl::StrCat("line ", rule.line, " of ", file_);
}

std::vector<std::string> GivenLayout::Unused() const {
  std::vector<std::string> out;
  for (size_t i = 0; i < used_.size(); ++i) {
    if (used_[i]) continue;
    const PlacementRule& rule = side_.rules[i];
    out.push_back(absl::StrCat(
        "nothing is placed by ", NameOf(rule), ": ", rule.entry,
        rule.inside.empty() ? "" : " inside ", rule.inside,
        rule.at.empty() ? "" : " at ", absl::StrJoin(rule.at, ", ")));
  }
  return out;
}

}  // namespace rankprobe::analysis
