// SPDX-License-Identifier: Apache-2.0
// Plan that assembles the tensors that several ranks recorded at one place of
// one call into the tensor of a run on one rank. A plan is made of shapes,
// placements and statistics alone; nothing is read. Pure functions.
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

// How a DTensor lies on one dimension of its mesh.
struct Placement {
  // kStridedShard: a shard of what a later dimension of the mesh shards too.
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
  // Its collective had not been waited for: no statistics.
  bool waiting = false;
  // Of a DTensor.
  std::optional<DeviceMesh> mesh;
  std::vector<Placement> placements;  // one for each dimension of the mesh

  int64_t elements() const;
};

// Of a record of dump.json. FAILED_PRECONDITION when it is not a tensor, or its mesh
// or placements cannot be read.
absl::StatusOr<TensorPart> ReadTensorPart(int64_t rank, StatSet stats,
                                          const JsonValue& record);

// Which shard of a tensor this is: its rank's place on the dimensions of the mesh
// that shard it; empty for what is whole. Parts of equal shards are replicas.
std::string ShardOf(const TensorPart& part);

struct JoinPlan {
  enum class How { kPart, kCopies, kShards, kSum, kAverage };
  How how = How::kPart;
  size_t part = 0;  // kPart: of the parts that were planned
  int64_t dim = 0;  // kShards
  std::vector<int64_t> shape;
  std::vector<JoinPlan> inputs;  // in the order of the whole
};

// What is known beside the parts themselves.
struct LayoutFacts {
  // Ranks that compute one model together (tensor parallel), by rank: what they
  // hold plain is a copy, or by its shape a part. Absent ranks are alone.
  std::map<int64_t, int64_t> model_groups;
  // Groups of ranks have one global batch between them, split on dimension 0 in
  // the order of ranks: the user's word.
  bool split_batch = false;
  // Inside of experts of which each rank has some: what ranks of one model hold
  // plain is of their own experts.
  bool inside_experts = false;
  // A function's gradients. Of one that gave what it was given (a cast to the
  // dtype it has) they are those of the call before it.
  bool function_gradients = false;
};

struct PlannedTensor {
  JoinPlan plan;
  bool by_shape = false;  // the other run's shape said which dimension
  bool by_batch = false;  // LayoutFacts::split_batch did
};

// `parts`: by rank, not empty. `whole`: the same place in a run of another
// layout, or null. FAILED_PRECONDITION: cannot be put together; the message is
// the reason, without the tensor's name.
absl::StatusOr<PlannedTensor> PlanTensor(absl::Span<const TensorPart> parts,
                                         const TensorPart* whole,
                                         const LayoutFacts& facts);

// A value that is not a tensor, as a rank recorded it.
struct RankValue {
  int64_t rank = 0;
  const JsonValue* record = nullptr;
};

// {"type": "int", "value": 4}
bool IsWholeNumber(const JsonValue& record);

// Ranks of different data have the sizes of their parts of a batch that was split:
// numbers that add up to the other run's.
bool PartsOfANumber(absl::Span<const RankValue> values, const JsonValue& whole,
                    const LayoutFacts& facts);

// "[4, 6]"
std::string SizesText(absl::Span<const int64_t> shape);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_LAYOUT_PLAN_H_
