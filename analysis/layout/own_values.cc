// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/own_values.h"

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace rankprobe::analysis {
namespace {

constexpr char kOwn[] =
    "computed inside of experts, of which each rank has its own";
constexpr char kOwnNumbers[] =
    "counts experts or tokens inside of experts, of which each rank has its "
    "own";

bool IsFloat(const TensorPart& part) {
  return absl::StrContains(part.dtype, "float") ||
         absl::StrContains(part.dtype, "complex");
}

bool IsOutput(absl::string_view place) {
  return absl::StartsWith(place, ".output");
}

bool IsInput(absl::string_view place) {
  return absl::StartsWith(place, ".input");
}

// Returns the place in the forward call whose gradient this is: an input of the
// backward call belongs to an output of the forward call, and vice versa.
std::string ForwardPlace(absl::string_view place) {
  if (absl::ConsumePrefix(&place, ".input")) {
    return absl::StrCat(".output", place);
  }
  if (absl::ConsumePrefix(&place, ".output")) {
    return absl::StrCat(".input_args", place);
  }
  return std::string(place);
}

std::string TensorText(const TensorPart& part) {
  std::string out =
      absl::StrCat(part.rank, " ", part.dtype, " ", part.elements());
  for (size_t i = 0; i < kUsualStatCount; ++i) {
    absl::StrAppend(
        &out, " ",
        part.stats[i].has_value() ? PartNumberText(*part.stats[i]) : "-");
  }
  return out;
}

}  // namespace

void OwnValues::Begin(absl::string_view call, absl::string_view experts) {
  // The backward call of the experts belongs to the same experts.
  const std::string forward =
      absl::StrReplaceAll(experts, {{".backward", ".forward"}});
  if (forward != experts_) tensors_.clear();
  experts_ = forward;
  call_ = absl::StrReplaceAll(call, {{".backward", ".forward"}});
  backward_ = call_ != call;
  own_input_ = own_floats_ = other_tensor_ = false;
}

bool OwnValues::IsKnown(const std::string& place,
                        absl::Span<const TensorPart> parts) const {
  if (backward_) {
    return places_.contains(absl::StrCat(call_, ForwardPlace(place)));
  }
  if (IsOutput(place)) return own_floats_ || (own_input_ && !other_tensor_);
  return !parts.empty() && IsFloat(parts[0]) &&
         absl::c_all_of(parts, [&](const TensorPart& part) {
           return tensors_.contains(TensorText(part));
         });
}

void OwnValues::Add(const std::string& place,
                    absl::Span<const TensorPart> parts) {
  if (backward_) return;
  places_.insert(absl::StrCat(call_, place));
  const bool floats = !parts.empty() && IsFloat(parts[0]);
  if (floats) {
    for (const TensorPart& part : parts) tensors_.insert(TensorText(part));
  }
  if (!IsInput(place)) return;
  own_input_ = true;
  own_floats_ = own_floats_ || floats;
}

std::string OwnValues::Why(const std::string& place,
                           absl::Span<const TensorPart> parts,
                           const PartStats* joined, const TensorPart* whole) {
  if (!inside()) return "";
  const bool placed = absl::c_any_of(
      parts, [](const TensorPart& part) { return part.mesh.has_value(); });
  std::string why;
  if (placed) {
    // A weight whose placement is known.
  } else if (joined == nullptr || IsKnown(place, parts)) {
    why = kOwn;
  } else if (!parts.empty() && !IsFloat(parts[0]) && whole != nullptr &&
             !SameStatistics(*joined, whole->stats)) {
    why = kOwnNumbers;
  }
  if (!why.empty()) {
    Add(place, parts);
  } else if (IsInput(place)) {
    other_tensor_ = true;
  }
  return why;
}

std::string OwnValues::WhyNumber(const std::string& place, bool equal) {
  if (!inside() || equal) return "";
  Add(place, {});
  return kOwnNumbers;
}

}  // namespace rankprobe::analysis
