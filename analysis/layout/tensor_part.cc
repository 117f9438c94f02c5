// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/layout/layout_plan.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

constexpr size_t kMaxMeshRanks = 1 << 16;
constexpr size_t kMaxMeshDims = 16;

absl::Status Unreadable(absl::string_view why) {
  return absl::FailedPreconditionError(why);
}

std::optional<int64_t> WholeNumber(const JsonValue* value) {
  if (value == nullptr || value->kind != JsonValue::Kind::kInt ||
      !(value->number >= 0 && value->number < 1e15)) {
    return std::nullopt;
  }
  return static_cast<int64_t>(value->number);
}

// Reads nested lists of ranks; all lists of one depth have the same length.
bool AddRanks(const JsonValue& value, size_t depth, DeviceMesh* mesh) {
  if (!value.is_array()) {
    const auto rank = WholeNumber(&value);
    if (!rank.has_value() || depth != mesh->shape.size() ||
        mesh->ranks.size() >= kMaxMeshRanks) {
      return false;
    }
    mesh->ranks.push_back(*rank);
    return true;
  }
  return depth < mesh->shape.size() &&
         value.items().size() == static_cast<size_t>(mesh->shape[depth]) &&
         std::all_of(value.items().begin(), value.items().end(),
                     [&](const JsonValue& item) {
                       return AddRanks(item, depth + 1, mesh);
                     });
}

absl::StatusOr<DeviceMesh> ReadMesh(const JsonValue& value) {
  DeviceMesh out;
  for (const JsonValue* at = &value; at->is_array(); at = at->items().data()) {
    out.shape.push_back(static_cast<int64_t>(at->items().size()));
    if (at->items().empty() || out.shape.size() > kMaxMeshDims) break;
  }
  if (out.shape.empty() || !AddRanks(value, 0, &out) || out.ranks.empty()) {
    return Unreadable("its mesh is not a nested list of ranks");
  }
  std::vector<int64_t> ranks = out.ranks;
  std::sort(ranks.begin(), ranks.end());
  if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    return Unreadable("its mesh has a rank twice");
  }
  return out;
}

absl::StatusOr<Placement> ReadPlacement(const JsonValue& value) {
  Placement out;
  const auto shard = [&](const JsonValue& of, Placement::Kind kind) {
    out.kind = kind;
    const auto dim = WholeNumber(of.Find("dim"));
    out.dim = dim.value_or(0);
    return dim.has_value();
  };
  bool known = value.Find("Replicate") != nullptr;
  if (const JsonValue* const of = value.Find("Shard"); of != nullptr) {
    known = shard(*of, Placement::Kind::kShard);
  } else if (const JsonValue* const strided = value.Find("_StridedShard");
             strided != nullptr) {
    known = shard(*strided, Placement::Kind::kStridedShard);
  } else if (const JsonValue* const partial = value.Find("Partial");
             partial != nullptr) {
    const JsonValue* const reduce = partial->Find("reduce_op");
    out.kind = Placement::Kind::kPartial;
    known = reduce != nullptr && reduce->is_string();
    if (known) out.reduce_op = std::string(reduce->text);
  }
  if (!known) {
    return Unreadable(
        absl::StrCat("its placement ", PythonText(value), " is not known"));
  }
  return out;
}

// msprobe writes no entry for a strided shard, which precedes the shard of the
// same dimension that it strides over.
void AddStridedShard(size_t mesh_dims, std::vector<Placement>* placements) {
  if (placements->size() + 1 != mesh_dims) return;
  for (size_t i = placements->size(); i-- > 0;) {
    if ((*placements)[i].kind != Placement::Kind::kShard) continue;
    Placement strided = (*placements)[i];
    strided.kind = Placement::Kind::kStridedShard;
    placements->insert(placements->begin() + static_cast<ptrdiff_t>(i),
                       std::move(strided));
    return;
  }
}

}  // namespace

absl::StatusOr<TensorPart> ReadTensorPart(int64_t rank, StatSet stats,
                                          const JsonValue& record) {
  const JsonValue* const dtype = record.Find("dtype");
  const JsonValue* const shape = record.Find("shape");
  if (dtype == nullptr || !dtype->is_string() || shape == nullptr ||
      !shape->is_array()) {
    return Unreadable("is not a tensor");
  }
  TensorPart out;
  out.rank = rank;
  out.dtype = std::string(dtype->text);
  double elements = 1;
  for (const JsonValue& size : shape->items()) {
    const auto number = WholeNumber(&size);
    if (!number.has_value()) return Unreadable("has a bad shape");
    out.shape.push_back(*number);
    // With this limit, products and sums of the sizes of a mesh's parts stay
    // below 2^63.
    elements *= static_cast<double>(std::max<int64_t>(1, *number));
  }
  if (!(elements < 1e13)) return Unreadable("has a bad shape");
  bool any = false;
  for (size_t i = 0; i < kStatCount; ++i) {
    if (!stats.Has(i)) continue;
    const JsonValue* const value = record.Find(kStatInfo[i].key);
    if (value != nullptr) out.stats[i] = ReadPartNumber(*value);
    any = any || out.stats[i].has_value();
  }
  const JsonValue* const type = record.Find("type");
  const auto is = [type](absl::string_view word) {
    return type != nullptr && type->is_string() &&
           absl::StrContains(type->text, word);
  };
  const JsonValue* const mesh = record.Find("device_mesh");
  out.waiting = !any && out.elements() > 0 &&
                (is("AsyncCollectiveTensor") || mesh != nullptr);
  if (mesh == nullptr) {
    if (is("DTensor")) return Unreadable("its mesh is not recorded");
    return out;
  }
  RP_ASSIGN_OR_RETURN(out.mesh, ReadMesh(*mesh));
  const JsonValue* const placements = record.Find("placements");
  if (placements == nullptr || placements->items().size() > kMaxMeshDims) {
    return Unreadable("its placements are not recorded");
  }
  for (const JsonValue& value : placements->items()) {
    RP_ASSIGN_OR_RETURN(Placement placement, ReadPlacement(value));
    out.placements.push_back(std::move(placement));
  }
  AddStridedShard(out.mesh->shape.size(), &out.placements);
  return out;
}

std::string ShardOf(const TensorPart& part) {
  std::string out;
  if (!part.mesh.has_value()) return out;
  const DeviceMesh& mesh = *part.mesh;
  const auto at = std::find(mesh.ranks.begin(), mesh.ranks.end(), part.rank);
  auto rest = static_cast<int64_t>(at - mesh.ranks.begin());
  for (size_t d = mesh.shape.size(); d-- > 0; rest /= mesh.shape[d]) {
    if (d < part.placements.size() &&
        part.placements[d].kind == Placement::Kind::kReplicate) {
      continue;
    }
    out = absl::StrCat(d, ":", rest % mesh.shape[d], " ", out);
  }
  return out;
}

}  // namespace rankprobe::analysis
