// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism: each rank has a part of a tensor. The complete tensor has
// the largest maximum, the smallest minimum, the mean of the means (the parts
// have equal sizes) and the root of the summed squares of the norms.
#include "analysis/merge/merge_tensors.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/base/casts.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/text/json_text.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {
namespace {

constexpr double kNoise = 1e-6;

bool SameNumber(const std::optional<MergedNumber>& a,
                const std::optional<MergedNumber>& b, bool rounded) {
  if (!a.has_value() || !b.has_value()) return true;
  if (!rounded) return a->value == b->value;
  const double distance = std::fabs(a->value - b->value);
  if (std::isnan(distance)) {
    // Two infinities of one sign are equal, too.
    return (std::isnan(a->value) && std::isnan(b->value)) ||
           a->value == b->value;
  }
  return (a->value == 0 ? distance : distance / std::fabs(a->value)) < kNoise;
}

// Whether the statistic is computed from many elements, whose order may differ.
bool IsRounded(OfParts rule) {
  return rule == OfParts::kMean || rule == OfParts::kRootOfSquares ||
         rule == OfParts::kSpread;
}

bool SameParam(const MergeParam& a, const MergeParam& b, bool rounded) {
  for (size_t i = 0; i < kStatCount; ++i) {
    if (!SameNumber(a.stats[i], b.stats[i],
                    rounded && IsRounded(kStatInfo[i].of_parts)))
      return false;
  }
  return true;
}

const MergeParam* FindParam(const std::vector<MergeParam>& params,
                            const std::string& place) {
  for (const MergeParam& param : params) {
    if (param.place == place) return &param;
  }
  return nullptr;
}

std::string TextOf(const MergedNumber& number) {
  if (number.is_int) return number.text;
  std::string out;
  AppendPythonFloat(number.value, &out);
  return out;
}

// Statistics are computed in the tensor's precision, so merged statistics are
// rounded to it.
double Rounded(double value, absl::string_view dtype) {
  if (!std::isfinite(value)) return value;
  const auto single = static_cast<float>(value);
  if (absl::EndsWith(dtype, "bfloat16") || dtype == "BFloat16") {
    auto bits = absl::bit_cast<uint32_t>(single);
    bits += 0x7fff + ((bits >> 16) & 1);
    return static_cast<double>(absl::bit_cast<float>(bits & 0xffff0000U));
  }
  if (absl::EndsWith(dtype, "float16") || dtype == "Float16") {
    const double magnitude = std::fabs(static_cast<double>(single));
    const int exponent =
        std::max(magnitude == 0 ? -14 : std::ilogb(magnitude), -14);
    const double quantum = std::ldexp(1.0, exponent - 10);
    const double out =
        std::nearbyint(static_cast<double>(single) / quantum) * quantum;
    constexpr double kLargestHalf = 65504;
    return std::fabs(out) > kLargestHalf
               ? std::copysign(std::numeric_limits<double>::infinity(), out)
               : out;
  }
  if (absl::EndsWith(dtype, "float32") || dtype == "Float32") {
    return static_cast<double>(single);
  }
  return value;
}

bool Larger(const MergedNumber& a, const MergedNumber& b) {
  return std::isnan(a.value) ? !std::isnan(b.value) : a.value > b.value;
}
bool Smaller(const MergedNumber& a, const MergedNumber& b) {
  return std::isnan(a.value) ? !std::isnan(b.value) : a.value < b.value;
}

class TensorMerger {
 public:
  TensorMerger(MergePool* pool, const std::vector<MergeTree*>& trees,
               const TensorPartners& partners)
      : pool_(pool),
        main_(trees[0]),
        others_(trees.begin() + 1, trees.end()),
        partners_(partners) {}

  absl::Status Run() {
    std::vector<MergeNode*> nodes;  // parents first
    std::vector<MergeNode*> stack = {main_->root};
    while (!stack.empty()) {
      MergeNode* const node = stack.back();
      stack.pop_back();
      nodes.push_back(node);
      stack.insert(stack.end(), node->children.rbegin(), node->children.rend());
    }
    for (MergeNode* const node : nodes) RP_RETURN_IF_ERROR(MergeNodeOf(node));
    for (MergeNode* const node : nodes) RP_RETURN_IF_ERROR(MergeSpan(node));
    return absl::OkStatus();
  }

 private:
  static bool IsMerged(const MergeNode& node) {
    return node.node.merged != nullptr && !node.node.merged->notes.empty();
  }
  static bool IsDistributed(const MergeNode& node) {
    return absl::StartsWith(node.id(), "Distributed");
  }
  // Matches class and direction of "Module.a.ColumnParallelLinear.forward.0".
  static bool IsParallelLinear(const MergeNode& node, absl::string_view name,
                               absl::string_view direction) {
    if (node.node.kind != NodeKind::kModule) return false;
    const std::vector<absl::string_view> parts = absl::StrSplit(node.id(), '.');
    return parts.size() >= 4 && parts[parts.size() - 2] == direction &&
           absl::StrContains(parts[parts.size() - 3], name);
  }

  absl::Status MergeNodeOf(MergeNode* node) {
    const MergeNode* const up = node->parent;
    if (up == nullptr || up->node.kind != NodeKind::kModule ||
        up->id() == "optimizer" || up->id() == "clip_grad" ||
        IsDistributed(*node) || IsMerged(*node)) {
      return absl::OkStatus();
    }
    RP_RETURN_IF_ERROR(TakeReduced(node));
    if (IsMerged(*node)) return absl::OkStatus();
    const std::vector<MergeNode*> others = Partners(*node);
    RP_ASSIGN_OR_RETURN(const ParamDifferences differ,
                        DifferingParams(pool_, *node, others, true));
    Merge(node, others, differ.input, differ.output);
    return absl::OkStatus();
  }

  // Returns the node's counterparts on the other ranks, or none unless all
  // ranks have one.
  std::vector<MergeNode*> Partners(const MergeNode& node) {
    const std::vector<std::string> ancestors = AncestorsOf(node);
    std::vector<MergeNode*> out;
    for (size_t i = 0; i < others_.size(); ++i) {
      std::string id = node.id();
      if (const auto rank = RankIn(id);
          rank.has_value() && !partners_.empty()) {
        const auto to = partners_.find(rank->second);
        if (to == partners_.end() || to->second.size() != others_.size()) {
          return {};
        }
        id = absl::StrCat(id.substr(0, rank->first), "_rank", to->second[i],
                          id.substr(id.find('.', rank->first)));
      }
      MergeNode* const other = others_[i]->Find(id);
      if (other == nullptr || AncestorsOf(*other) != ancestors) return {};
      out.push_back(other);
    }
    return out;
  }

  // Returns the position of "_rank{R}." in an id, and R.
  static std::optional<std::pair<size_t, int64_t>> RankIn(
      const std::string& id) {
    for (size_t at = id.find("_rank"); at != std::string::npos;
         at = id.find("_rank", at + 1)) {
      const size_t dot = id.find('.', at);
      int64_t rank = 0;
      if (dot != std::string::npos &&
          absl::SimpleAtoi(id.substr(at + 5, dot - at - 5), &rank)) {
        return std::pair(at, rank);
      }
    }
    return std::nullopt;
  }

  // The output of a row-parallel layer is complete after the reduction that
  // follows it.
  absl::Status TakeReduced(MergeNode* layer) {
    if (!IsParallelLinear(*layer, "RowParallelLinear", "forward") &&
        !IsParallelLinear(*layer, "ColumnParallelLinear", "backward")) {
      return absl::OkStatus();
    }
    std::vector<MergeNode*> products;
    std::vector<MergeNode*> reductions;
    for (MergeNode* const child : layer->children) {
      if (absl::StrContains(child->id(), "matmul")) products.push_back(child);
      if (absl::StrContains(child->id(), "_reduce_scatter_base") ||
          absl::StrContains(child->id(), "reduce_scatter_tensor") ||
          absl::StrContains(child->id(), "all_reduce")) {
        reductions.push_back(child);
      }
    }
    for (MergeNode* const product : products) {
      RP_ASSIGN_OR_RETURN(const MergeParams values, pool_->Params(*product));
      if (values.output.empty()) continue;
      for (auto it = reductions.begin(); it != reductions.end(); ++it) {
        RP_ASSIGN_OR_RETURN(const MergeParams reduced, pool_->Params(**it));
        const size_t at = absl::StrContains((*it)->id(), "all_reduce") ? 0 : 1;
        if (reduced.output.empty() || reduced.input.size() <= at ||
            !SameParam(values.output[0], reduced.input[at], false)) {
          continue;
        }
        const std::vector<MergeNode*> others = Partners(*product);
        RP_ASSIGN_OR_RETURN(const ParamDifferences differ,
                            DifferingParams(pool_, *product, others, true));
        Merge(product, others, differ.input, {});
        SetStats(product, values.output[0].place, reduced.output[0].stats);
        product->Merged()->notes.push_back(absl::StrCat(
            "The output is that of ", (*it)->id(), reduced.output[0].place));
        reductions.erase(it);
        break;
      }
    }
    return absl::OkStatus();
  }

  // Between a column-parallel layer and the next row-parallel layer, all
  // tensors are parts, even if the parts have equal values.
  absl::Status MergeSpan(MergeNode* first) {
    if (!IsParallelLinear(*first, "ColumnParallelLinear", "forward") ||
        IsMerged(*first) || first->parent == nullptr) {
      return absl::OkStatus();
    }
    const std::vector<MergeNode*>& siblings = first->parent->children;
    size_t begin = siblings.size();
    size_t end = siblings.size();
    for (size_t i = 0; i < siblings.size(); ++i) {
      if (absl::StrContains(siblings[i]->id(), first->id())) {
        begin = i;
      } else if (absl::StrContains(siblings[i]->id(), "RowParallelLinear")) {
        end = i;
      }
    }
    if (begin == siblings.size() || end == siblings.size() || end <= begin) {
      return absl::OkStatus();
    }
    const MergeNode* const last = siblings[end];
    const auto part_of = [](const MergeNode& node, const MergeNode* layer) {
      return &node == layer ||
             (node.parent == layer && absl::StrContains(node.id(), "matmul"));
    };
    std::vector<MergeNode*> stack(
        siblings.begin() + static_cast<ptrdiff_t>(begin),
        siblings.begin() + static_cast<ptrdiff_t>(end) + 1);
    while (!stack.empty()) {
      MergeNode* const node = stack.back();
      stack.pop_back();
      stack.insert(stack.end(), node->children.rbegin(), node->children.rend());
      if (IsMerged(*node) || IsDistributed(*node)) continue;
      const std::vector<MergeNode*> others = Partners(*node);
      RP_ASSIGN_OR_RETURN(ParamDifferences all,
                          DifferingParams(pool_, *node, others, false));
      if (all.input.empty() && all.output.empty()) continue;
      const auto drop = [&all](absl::string_view place) {
        std::erase_if(all.input, [place](const ParamOfRanks& param) {
          return param[0].place == place;
        });
      };
      if (part_of(*node, first)) {
        drop(".input.0");
      } else if (part_of(*node, last)) {
        all.output.clear();
        drop(".parameters.bias");
      }
      Merge(node, others, all.input, all.output);
    }
    return absl::OkStatus();
  }

  static void SetStats(MergeNode* node, const std::string& place,
                       const PerStat<std::optional<MergedNumber>>& numbers) {
    std::vector<MergedValues::Stats>& all = node->Merged()->stats;
    for (MergedValues::Stats& known : all) {
      if (known.place != place) continue;
      known.numbers = numbers;
      return;
    }
    all.push_back({place, numbers});
  }

  static void Merge(MergeNode* node, const std::vector<MergeNode*>& others,
                    const std::vector<ParamOfRanks>& input,
                    const std::vector<ParamOfRanks>& output) {
    if (input.empty() && output.empty()) return;
    std::vector<int64_t> ranks = {node->rank};
    for (const MergeNode* const other : others) ranks.push_back(other->rank);
    node->Merged()->notes.push_back(
        absl::StrCat("Merged over the tensor parallel ranks [",
                     absl::StrJoin(ranks, ", "), "]"));
    for (const auto* const side : {&input, &output}) {
      for (const ParamOfRanks& param : *side) MergeParamOf(node, param);
    }
  }

  static void MergeParamOf(MergeNode* node, const ParamOfRanks& param) {
    if (param.size() < 2) return;
    PerStat<std::optional<MergedNumber>> merged;
    for (size_t stat = 0; stat < merged.size(); ++stat) {
      const std::vector<MergedNumber> parts = Known(param, stat);
      const OfParts rule = kStatInfo[stat].of_parts;
      if (parts.empty()) continue;
      const std::vector<MergedNumber> means = Known(param, kMean);
      if (parts.size() < param.size() ||
          (rule == OfParts::kSpread && means.size() < param.size())) {
        // The first rank's value would be taken for that of the complete
        // tensor.
        if (stat >= kUsualStatCount) merged[stat].emplace().is_null = true;
        continue;
      }
      MergedNumber out = Whole(rule, parts);
      if (rule == OfParts::kSpread) out.value = Spread(parts, means);
      if (!out.is_int) out.value = Rounded(out.value, param[0].dtype);
      merged[stat] = out;
      node->Merged()->notes.push_back(
          absl::StrCat(kStatInfo[stat].key, " of ", param[0].place.substr(1),
                       ": ", Formula(rule, parts), " = ", TextOf(out)));
    }
    SetStats(node, param[0].place, merged);
  }

  static std::vector<MergedNumber> Known(const ParamOfRanks& param,
                                         size_t stat) {
    std::vector<MergedNumber> out;
    for (const MergeParam& part : param) {
      if (part.stats[stat].has_value()) out.push_back(*part.stats[stat]);
    }
    return out;
  }

  // Combines the spread within the parts with that of their means around the
  // common mean.
  static double Spread(const std::vector<MergedNumber>& parts,
                       const std::vector<MergedNumber>& means) {
    const auto count = static_cast<double>(parts.size());
    double mean = 0;
    for (const MergedNumber& part : means) mean += part.value / count;
    double variance = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const double distance = means[i].value - mean;
      variance +=
          (parts[i].value * parts[i].value + distance * distance) / count;
    }
    return std::sqrt(variance);
  }

  static MergedNumber Whole(OfParts rule,
                            const std::vector<MergedNumber>& parts) {
    MergedNumber out = parts[0];
    double sum = 0;
    double squares = 0;
    for (const MergedNumber& part : parts) {
      if ((rule == OfParts::kLargest && Larger(part, out)) ||
          (rule == OfParts::kSmallest && Smaller(part, out))) {
        out = part;
      }
      sum += part.value;
      squares += part.value * part.value;
    }
    switch (rule) {
      case OfParts::kLargest:
      case OfParts::kSmallest:
        return out;
      case OfParts::kSum:
        // These statistics are numbers of elements.
        out.value = sum;
        out.text = absl::StrCat(static_cast<int64_t>(sum));
        return out;
      case OfParts::kMean:
        out.value = sum / static_cast<double>(parts.size());
        break;
      case OfParts::kRootOfSquares:
        out.value = std::sqrt(squares);
        break;
      case OfParts::kSpread:
        break;  // of the means, too
    }
    out.is_int = false;
    out.text.clear();
    return out;
  }

  static std::string Formula(OfParts rule,
                             const std::vector<MergedNumber>& parts) {
    std::vector<std::string> texts;
    texts.reserve(parts.size());
    for (const MergedNumber& part : parts) texts.push_back(TextOf(part));
    switch (rule) {
      case OfParts::kLargest:
        return absl::StrCat("max(", absl::StrJoin(texts, ", "), ")");
      case OfParts::kSmallest:
        return absl::StrCat("min(", absl::StrJoin(texts, ", "), ")");
      case OfParts::kSum:
        return absl::StrJoin(texts, " + ");
      case OfParts::kMean:
        return absl::StrCat("(", absl::StrJoin(texts, " + "), ") / ",
                            texts.size());
      case OfParts::kRootOfSquares:
        return absl::StrCat("sqrt(", absl::StrJoin(texts, "^2 + "), "^2)");
      case OfParts::kSpread:
        return absl::StrCat("sqrt((", absl::StrJoin(texts, "^2 + "), "^2) / ",
                            texts.size(), " + variance of the means)");
    }
    return "";
  }

  MergePool* const pool_;
  MergeTree* const main_;
  const std::vector<MergeTree*> others_;
  const TensorPartners& partners_;
};

}  // namespace

absl::StatusOr<ParamDifferences> DifferingParams(
    MergePool* pool, const MergeNode& node,
    const std::vector<MergeNode*>& others, bool only_differing) {
  ParamDifferences out;
  if (others.empty()) return out;
  RP_ASSIGN_OR_RETURN(const MergeParams own, pool->Params(node));
  std::vector<MergeParams> of_others;
  for (const MergeNode* const other : others) {
    RP_ASSIGN_OR_RETURN(MergeParams params, pool->Params(*other));
    of_others.push_back(std::move(params));
  }
  for (const bool is_output : {false, true}) {
    for (const MergeParam& param : is_output ? own.output : own.input) {
      if (!param.IsTensor()) continue;
      ParamOfRanks ranks = {param};
      bool same = only_differing;
      for (const MergeParams& other : of_others) {
        const MergeParam* const value =
            FindParam(is_output ? other.output : other.input, param.place);
        if (value == nullptr || !value->IsTensor()) break;
        ranks.push_back(*value);
        same = same && SameParam(param, *value, true);
      }
      if (!same) {
        (is_output ? out.output : out.input).push_back(std::move(ranks));
      }
    }
  }
  return out;
}

absl::Status MergeTensors(MergePool* pool, const std::vector<MergeTree*>& trees,
                          const TensorPartners& partners) {
  if (trees.size() < 2) return absl::OkStatus();
  return TensorMerger(pool, trees, partners).Run();
}

}  // namespace rankprobe::analysis
