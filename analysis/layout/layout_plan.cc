// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/layout_plan.h"

#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analysis/layout/layout_execute.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

using How = JoinPlan::How;
using Kind = Placement::Kind;

absl::Status Refused(absl::string_view why) {
  return absl::FailedPreconditionError(why);
}

// A partial plan, and the lowest rank in it.
struct Piece {
  JoinPlan plan;
  int64_t rank = 0;
};

std::vector<JoinPlan> PlansOf(std::vector<Piece>* pieces) {
  std::vector<JoinPlan> out;
  for (Piece& piece : *pieces) out.push_back(std::move(piece.plan));
  return out;
}

// Joins the pieces along `dim`; all other dimensions must be equal.
absl::StatusOr<Piece> Shards(std::vector<Piece> pieces, int64_t dim) {
  Piece out;
  out.rank = pieces[0].rank;
  out.plan.how = How::kShards;
  out.plan.dim = dim;
  out.plan.shape = pieces[0].plan.shape;
  const auto at = static_cast<size_t>(dim);
  if (at >= out.plan.shape.size()) {
    return Refused(absl::StrCat("sharded on dimension ", dim, " of ",
                                SizesText(out.plan.shape)));
  }
  out.plan.shape[at] = 0;
  for (const Piece& piece : pieces) {
    const std::vector<int64_t>& shape = piece.plan.shape;
    bool fits = shape.size() == out.plan.shape.size();
    for (size_t d = 0; fits && d < shape.size(); ++d) {
      fits = d == at || shape[d] == out.plan.shape[d];
    }
    if (!fits) {
      return Refused(absl::StrCat("its shards do not fit on dimension ", dim,
                                  ": ", SizesText(pieces[0].plan.shape),
                                  " of rank ", pieces[0].rank, ", ",
                                  SizesText(shape), " of rank ", piece.rank));
    }
    out.plan.shape[at] += shape[at];
  }
  out.plan.inputs = PlansOf(&pieces);
  return out;
}

absl::StatusOr<Piece> OfOneShape(std::vector<Piece> pieces, How how) {
  Piece out;
  out.rank = pieces[0].rank;
  out.plan.how = how;
  out.plan.shape = pieces[0].plan.shape;
  for (const Piece& piece : pieces) {
    if (piece.plan.shape == out.plan.shape) continue;
    return Refused(absl::StrCat("ranks ", out.rank, " and ", piece.rank,
                                " have shapes ", SizesText(out.plan.shape),
                                " and ", SizesText(piece.plan.shape)));
  }
  out.plan.inputs = PlansOf(&pieces);
  return out;
}

absl::StatusOr<Piece> Combine(std::vector<Piece> pieces,
                              const Placement& placement) {
  if (pieces.size() == 1) return std::move(pieces[0]);
  switch (placement.kind) {
    case Kind::kReplicate:
      return OfOneShape(std::move(pieces), How::kCopies);
    case Kind::kShard:
    case Kind::kStridedShard:
      return Shards(std::move(pieces), placement.dim);
    case Kind::kPartial:
      if (placement.reduce_op == "sum") {
        return OfOneShape(std::move(pieces), How::kSum);
      }
      if (placement.reduce_op == "avg") {
        return OfOneShape(std::move(pieces), How::kAverage);
      }
      return Refused(
          absl::StrCat("Partial(", placement.reduce_op, ") is not assembled"));
  }
  return Refused("an unknown placement");
}

// Returns the mesh dimensions in the order in which they are joined. Nested
// shards are joined from the innermost, which is the last dimension, except
// that a strided shard was split last of all.
std::vector<size_t> JoinOrder(const std::vector<Placement>& placements) {
  std::vector<size_t> order;
  for (const bool strided : {true, false}) {
    for (size_t i = placements.size(); i-- > 0;) {
      if ((placements[i].kind == Kind::kStridedShard) == strided) {
        order.push_back(i);
      }
    }
  }
  return order;
}

// Joins all ranks of one mesh; `of_rank` has a piece for each of them.
absl::StatusOr<Piece> JoinMesh(const DeviceMesh& mesh,
                               const std::vector<Placement>& placements,
                               std::vector<Piece> pieces) {
  if (placements.size() != mesh.shape.size()) {
    return Refused(absl::StrCat("a mesh of ", mesh.shape.size(),
                                " dimensions with ", placements.size(),
                                " placements"));
  }
  std::vector<int64_t> shape = mesh.shape;
  for (const size_t dim : JoinOrder(placements)) {
    // Joins along mesh dimension `dim`, whose size is 1 afterwards.
    int64_t inner = 1;
    for (size_t d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
    const auto length = static_cast<size_t>(shape[dim]);
    const size_t lines = pieces.size() / length;
    std::vector<Piece> joined;
    for (size_t line = 0; line < lines; ++line) {
      const auto step = static_cast<size_t>(inner);
      const size_t first = line / step * step * length + line % step;
      std::vector<Piece> on_line;
      for (size_t i = 0; i < length; ++i) {
        on_line.push_back(std::move(pieces[first + i * step]));
      }
      RP_ASSIGN_OR_RETURN(Piece one,
                          Combine(std::move(on_line), placements[dim]));
      joined.push_back(std::move(one));
    }
    pieces = std::move(joined);
    shape[dim] = 1;
  }
  return std::move(pieces[0]);
}

bool SamePlacements(const std::vector<Placement>& a,
                    const std::vector<Placement>& b) {
  return absl::c_equal(a, b, [](const Placement& x, const Placement& y) {
    return x.kind == y.kind && x.dim == y.dim && x.reduce_op == y.reduce_op;
  });
}

class Planner {
 public:
  Planner(absl::Span<const TensorPart> parts, const TensorPart* whole,
          const LayoutFacts& facts)
      : parts_(parts), whole_(whole), facts_(facts) {
    for (size_t i = 0; i < parts.size(); ++i) by_rank_[parts[i].rank] = i;
  }

  absl::StatusOr<PlannedTensor> Run() {
    for (const TensorPart& part : parts_) {
      if (part.dtype == parts_[0].dtype) continue;
      return Refused(absl::StrCat("ranks ", parts_[0].rank, " and ", part.rank,
                                  " have dtypes ", parts_[0].dtype, " and ",
                                  part.dtype));
    }
    RP_ASSIGN_OR_RETURN(std::vector<Piece> pieces, JoinMeshes());
    RP_ASSIGN_OR_RETURN(pieces, JoinModels(std::move(pieces)));
    RP_ASSIGN_OR_RETURN(Piece whole, JoinData(std::move(pieces)));
    if (facts_.function_gradients && whole_ != nullptr &&
        whole_->shape != whole.plan.shape) {
      return Refused(absl::StrCat(
          "its call gave what it was given, so this is a gradient of the call "
          "before it, which is another in the other run: ",
          SizesText(whole.plan.shape), " and ", SizesText(whole_->shape)));
    }
    PlannedTensor out;
    out.plan = std::move(whole.plan);
    out.by_shape = by_shape_;
    out.by_batch = by_batch_;
    return out;
  }

 private:
  Piece PartPiece(size_t index) const {
    Piece out;
    out.plan.part = index;
    out.plan.shape = parts_[index].shape;
    out.rank = parts_[index].rank;
    return out;
  }

  // Joins the DTensors of each mesh and adds the plain tensors.
  absl::StatusOr<std::vector<Piece>> JoinMeshes() {
    std::vector<Piece> out;
    std::vector<bool> done(parts_.size());
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (done[i]) continue;
      if (!parts_[i].mesh.has_value()) {
        out.push_back(PartPiece(i));
        continue;
      }
      const DeviceMesh& mesh = *parts_[i].mesh;
      std::vector<Piece> pieces;
      for (const int64_t rank : mesh.ranks) {
        const auto it = by_rank_.find(rank);
        if (it == by_rank_.end()) {
          return Refused(absl::StrCat("rank ", rank, " of its mesh [",
                                      absl::StrJoin(mesh.ranks, ", "),
                                      "] recorded no such tensor"));
        }
        const TensorPart& part = parts_[it->second];
        if (!part.mesh.has_value() || part.mesh->ranks != mesh.ranks ||
            part.mesh->shape != mesh.shape ||
            !SamePlacements(part.placements, parts_[i].placements)) {
          return Refused(absl::StrCat("ranks ", parts_[i].rank, " and ", rank,
                                      " placed it in other ways"));
        }
        done[it->second] = true;
        pieces.push_back(PartPiece(it->second));
      }
      RP_ASSIGN_OR_RETURN(Piece joined, JoinMesh(mesh, parts_[i].placements,
                                                 std::move(pieces)));
      out.push_back(std::move(joined));
    }
    return out;
  }

  int64_t GroupOf(const Piece& piece) const {
    const auto it = facts_.model_groups.find(piece.rank);
    // A rank without a group gets a number that no group has.
    return it == facts_.model_groups.end() ? -1 - piece.rank : it->second;
  }

  bool SameValues(const std::vector<Piece>& pieces) const {
    const JoinedStatistics first = JoinStatistics(pieces[0].plan, parts_);
    for (const Piece& piece : pieces) {
      const JoinedStatistics other = JoinStatistics(piece.plan, parts_);
      if (piece.plan.shape != pieces[0].plan.shape ||
          !SameStatistics(first.stats, other.stats)) {
        return false;
      }
    }
    return true;
  }

  bool HasNan(const Piece& piece) const {
    const PartStats stats = JoinStatistics(piece.plan, parts_).stats;
    return absl::c_any_of(stats, [](const auto& number) {
      return number.has_value() && std::isnan(number->value);
    });
  }

  // Joins the plain tensors on the ranks of one model: they are copies, or
  // parts according to the other run's shape.
  absl::StatusOr<std::vector<Piece>> JoinModels(std::vector<Piece> pieces) {
    std::vector<std::pair<int64_t, std::vector<Piece>>> groups;
    for (Piece& piece : pieces) {
      const int64_t group = GroupOf(piece);
      if (groups.empty() || groups.back().first != group) {
        const auto known = absl::c_find_if(
            groups, [&](const auto& g) { return g.first == group; });
        if (known != groups.end()) {
          known->second.push_back(std::move(piece));
          continue;
        }
        groups.emplace_back(group, std::vector<Piece>());
      }
      groups.back().second.push_back(std::move(piece));
    }
    std::vector<Piece> out;
    for (auto& [group, members] : groups) {
      RP_ASSIGN_OR_RETURN(Piece one, JoinModel(std::move(members)));
      out.push_back(std::move(one));
    }
    return out;
  }

  absl::StatusOr<Piece> JoinModel(std::vector<Piece> pieces) {
    if (pieces.size() == 1) return std::move(pieces[0]);
    RP_ASSIGN_OR_RETURN(const std::optional<int64_t> dim, DimByShape(pieces));
    if (dim.has_value()) {
      by_shape_ = true;
      return Shards(std::move(pieces), *dim);
    }
    // If a rank masks the tokens of other ranks' experts, their outputs are
    // unwritten. NaN on all ranks therefore does not prove that they are
    // copies.
    if (facts_.inside_experts && (!SameValues(pieces) || HasNan(pieces[0]))) {
      return Refused(
          "computed inside of experts, of which each rank has its own");
    }
    if (whole_ == nullptr && !SameValues(pieces)) {
      return Refused(
          "no placement is recorded, its ranks differ, and the other run has "
          "nothing that distinguishes copies from parts");
    }
    return OfOneShape(std::move(pieces), How::kCopies);
  }

  // Returns the dimension along which the pieces add up to the other run's
  // size, while all their other dimensions equal it. If they are parts of a
  // batch, dimension 0 does not count.
  absl::StatusOr<std::optional<int64_t>> DimByShape(
      const std::vector<Piece>& pieces) const {
    if (whole_ == nullptr || whole_->shape == pieces[0].plan.shape) {
      return std::nullopt;
    }
    const std::vector<int64_t>& wanted = whole_->shape;
    std::vector<int64_t> sums(wanted.size());
    for (const Piece& piece : pieces) {
      if (piece.plan.shape.size() != wanted.size()) {
        return Refused(absl::StrCat(
            "its shape is ", SizesText(piece.plan.shape), " on rank ",
            piece.rank, ", the other run's ", SizesText(wanted)));
      }
      for (size_t d = 0; d < sums.size(); ++d) sums[d] += piece.plan.shape[d];
    }
    std::optional<int64_t> found;
    for (size_t d = 0; d < wanted.size(); ++d) {
      const int64_t own = pieces[0].plan.shape[d];
      if (own == wanted[d] || (d == 0 && facts_.split_batch)) continue;
      // Experts share tokens, which are on the first dimension.
      const bool elsewhere = facts_.inside_experts && d > 0;
      if (sums[d] != wanted[d] || found.has_value() || elsewhere) {
        return Refused(absl::StrCat(
            "no placement is recorded, and ", SizesText(pieces[0].plan.shape),
            " on ", pieces.size(), " ranks does not add up to the other run's ",
            SizesText(wanted), " on one dimension"));
      }
      found = static_cast<int64_t>(d);
    }
    return found;
  }

  // Joins ranks that share no model; they have different batches or the same
  // one.
  absl::StatusOr<Piece> JoinData(std::vector<Piece> pieces) {
    if (pieces.size() == 1) return std::move(pieces[0]);
    if (facts_.split_batch && facts_.function_gradients &&
        pieces[0].plan.shape.empty()) {
      return Refused(
          "the gradient of a number that each part of the batch has for itself "
          "(its loss)");
    }
    const bool same = SameValues(pieces);
    const bool fits =
        whole_ == nullptr || whole_->shape == pieces[0].plan.shape;
    if (same && (fits || !facts_.split_batch)) {
      return OfOneShape(std::move(pieces), How::kCopies);
    }
    if (facts_.split_batch && !pieces[0].plan.shape.empty()) {
      RP_ASSIGN_OR_RETURN(Piece joined, Shards(std::move(pieces), 0));
      if (whole_ == nullptr || whole_->shape == joined.plan.shape) {
        by_batch_ = true;
        return joined;
      }
      return Refused(
          absl::StrCat("ranks of different data hold different values, which "
                       "are not parts on "
                       "dimension 0 of the other run's ",
                       SizesText(whole_->shape)));
    }
    return Refused(absl::StrCat(
        "ranks ", pieces[0].rank, " and ", pieces[1].rank,
        " share no model and hold different values (of other batches, or not "
        "reduced yet)",
        facts_.split_batch ? "" : "; --split_batch joins parts of a batch"));
  }

  const absl::Span<const TensorPart> parts_;
  const TensorPart* const whole_;
  const LayoutFacts& facts_;
  std::map<int64_t, size_t> by_rank_;
  bool by_shape_ = false;
  bool by_batch_ = false;
};

}  // namespace

int64_t TensorPart::elements() const {
  int64_t out = 1;
  for (const int64_t size : shape) out *= size;
  return out;
}

std::string SizesText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

bool IsWholeNumber(const JsonValue& record) {
  const JsonValue* const type = record.Find("type");
  const JsonValue* const value = record.Find("value");
  return type != nullptr && type->is_string() && type->text == "int" &&
         value != nullptr && value->is_number();
}

bool PartsOfANumber(absl::Span<const RankValue> values, const JsonValue& whole,
                    const LayoutFacts& facts) {
  if (!facts.split_batch || !IsWholeNumber(whole)) return false;
  std::map<int64_t, double> of_group;
  double sum = 0;
  for (const RankValue& value : values) {
    if (!IsWholeNumber(*value.record)) return false;
    const double number = value.record->Find("value")->number;
    const auto group = facts.model_groups.find(value.rank);
    // A rank without a group gets a number that no group has.
    const auto [it, fresh] = of_group.emplace(
        group == facts.model_groups.end() ? -1 - value.rank : group->second,
        number);
    if (it->second != number) return false;
    if (fresh) sum += number;
  }
  return of_group.size() > 1 && sum == whole.Find("value")->number;
}

absl::StatusOr<PlannedTensor> PlanTensor(absl::Span<const TensorPart> parts,
                                         const TensorPart* whole,
                                         const LayoutFacts& facts) {
  return Planner(parts, whole, facts).Run();
}

}  // namespace rankprobe::analysis
