// SPDX-License-Identifier: Apache-2.0
// Plan that assembles the tensors that several ranks recorded at one place of
// one call into the tensor of a run on one rank. A plan depends only on shapes,
// placements and statistics; no file is read. Pure functions.
#ifndef RANKPROBE_ANALYSIS_LAYOUT_LAYOUT_PLAN_H_
#define RANKPROBE_ANALYSIS_LAYOUT_LAYOUT_PLAN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "analysis/layout/part_statistics.h"
#include "dump_format/json_value.h"

namespace rankprobe::analysis {

// Placement of a DTensor on one dimension of its mesh.
struct Placement {
  // kStridedShard: a shard of a dimension that a later mesh dimension shards,
  // too.
  enum class Kind { kReplicate, kShard, kStridedShard, kPartial };
  Kind kind = Kind::kReplicate;
  int64_t dim = 0;
  std::string reduce_op;
};

struct DeviceMesh {
  std::vector<int64_t> shape;
  std::vector<int64_t> ranks;  // row-major
};

struct TensorPart {
  int64_t rank = 0;
  std::string dtype;
  std::vector<int64_t> shape;
  PartStats stats;
  // Its collective had not been waited for, so there are no statistics.
  bool waiting = false;
  // Set for a DTensor only.
  std::optional<DeviceMesh> mesh;
  std::vector<Placement> placements;  // one for each dimension of the mesh

  int64_t elements() const;
};

// Reads a part from a record of dump.json. Returns FAILED_PRECONDITION if the
// value is not a tensor, or if its mesh or placements cannot be read.
absl::StatusOr<TensorPart> ReadTensorPart(int64_t rank, StatSet stats,
                                          const JsonValue& record);

// Returns which shard of a tensor the part is: the coordinates of its rank on
// the mesh dimensions that shard it, or an empty text for a complete tensor.
// Parts with equal shards are replicas.
std::string ShardOf(const TensorPart& part);

struct JoinPlan {
  enum class How { kPart, kCopies, kShards, kSum, kAverage };
  How how = How::kPart;
  size_t part = 0;  // kPart: of the parts that were planned
  int64_t dim = 0;  // kShards
  std::vector<int64_t> shape;
  std::vector<JoinPlan> inputs;  // in the order of the complete tensor
};

// Facts that the parts themselves do not contain.
struct LayoutFacts {
  // The group of each rank, where a group computes one model together (tensor
  // parallel): a plain tensor is a copy on each of its ranks, or a part if its
  // shape says so. A rank that is missing here forms its own group.
  std::map<int64_t, int64_t> model_groups;
  // Groups of ranks share one global batch that is split on dimension 0 in the
  // order of ranks. The user states this.
  bool split_batch = false;
  // The call is inside experts that are distributed over ranks, so plain
  // tensors on the ranks of one model belong to their own experts.
  bool inside_experts = false;
  // The tensors are gradients of a function. If the function returned its input
  // (a cast to the same dtype), they are the gradients of the call before it.
  bool function_gradients = false;
};

struct PlannedTensor {
  JoinPlan plan;
  bool by_shape = false;  // the other run's shape decided
  bool by_batch = false;  // LayoutFacts::split_batch decided
};

// Plans one tensor. `parts` are ordered by rank and not empty. `whole` is the
// same place in a run of another layout, or null. Returns FAILED_PRECONDITION
// if the parts cannot be joined; the message is the reason, without the
// tensor's name.
absl::StatusOr<PlannedTensor> PlanTensor(absl::Span<const TensorPart> parts,
                                         const TensorPart* whole,
                                         const LayoutFacts& facts);

// A value that is not a tensor, as a rank recorded it.
struct RankValue {
  int64_t rank = 0;
  const JsonValue* record = nullptr;
};

// True for {"type": "int", "value": 4}.
bool IsWholeNumber(const JsonValue& record);

// Whether ranks with different data recorded the sizes of their parts of a
// split batch: numbers that add up to the other run's.
bool PartsOfANumber(absl::Span<const RankValue> values, const JsonValue& whole,
                    const LayoutFacts& facts);

// Returns a text such as "[4, 6]".
std::string SizesText(absl::Span<const int64_t> shape);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_LAYOUT_PLAN_H_
