// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/decoded_size.h"

#include <algorithm>

namespace rankprobe {
namespace {

// Header and rounding of the heap.
constexpr uint64_t kHeap = 16;

// Cost of one message behind a pointer.
template <typename Message>
constexpr uint64_t kMessage = sizeof(Message) + sizeof(void*) + kHeap;
// Cost of one string; short ones have no separate allocation.
constexpr uint64_t kString = sizeof(std::string) + sizeof(void*) + kHeap;

uint64_t StringCost(const std::string& text) {
  return text.empty() ? 0 : kString;
}

uint64_t TensorCost(const v1::TensorSummary& tensor) {
  uint64_t cost = kMessage<v1::TensorSummary>;
  cost += StringCost(tensor.type()) + StringCost(tensor.dtype_name()) +
          StringCost(tensor.numpy_dtype()) +
          StringCost(tensor.device_mesh_json());
  cost +=
      static_cast<uint64_t>(tensor.shape_size() + tensor.global_shape_size()) *
      sizeof(int64_t);
  if (tensor.has_stats()) cost += kMessage<v1::TensorStats>;
  cost +=
      static_cast<uint64_t>(tensor.extra_size()) * kMessage<v1::ExtraStatistic>;
  if (tensor.has_checksum()) cost += kMessage<v1::Checksum>;
  if (tensor.has_payload()) cost += kMessage<v1::PayloadRef> + kString;
  cost += static_cast<uint64_t>(tensor.placements_size()) *
          (kMessage<v1::Placement> + kString);
  return cost;
}

// The recursion is bounded by protobuf's depth limit.
uint64_t ValueCost(const v1::Value& value);

uint64_t ListCost(const v1::ValueList& list) {
  uint64_t cost = kMessage<v1::ValueList>;
  for (const v1::Value& item : list.items()) cost += ValueCost(item);
  return cost;
}

uint64_t MapCost(const v1::ValueMap& map) {
  uint64_t cost = kMessage<v1::ValueMap>;
  for (const v1::NamedValue& item : map.items()) {
    cost += kMessage<v1::NamedValue> + StringCost(item.name());
    if (item.has_value()) cost += ValueCost(item.value());
  }
  return cost;
}

uint64_t ValueCost(const v1::Value& value) {
  const uint64_t cost = kMessage<v1::Value>;
  switch (value.kind_case()) {
    case v1::Value::kTensor:
      return cost + TensorCost(value.tensor());
    case v1::Value::kScalar:
      return cost + kMessage<v1::ScalarValue> +
             StringCost(value.scalar().type()) +
             (value.scalar().has_s() || value.scalar().has_big_int() ? kString
                                                                     : 0);
    case v1::Value::kObject:
      return cost + kMessage<v1::ObjectLeaf> + kString +
             static_cast<uint64_t>(value.object().ints_size()) *
                 sizeof(int64_t);
    case v1::Value::kList:
      return cost + ListCost(value.list());
    case v1::Value::kMap:
      return cost + MapCost(value.map());
    case v1::Value::kP2P:
      return cost + kMessage<v1::P2pOp> + 2 * kString +
             TensorCost(value.p2p().tensor());
    case v1::Value::kCut:
      return cost + kMessage<v1::CutValue> + 3 * kString;
    case v1::Value::KIND_NOT_SET:
      break;
  }
  return cost;
}

uint64_t CallCost(const v1::CallPhase& call) {
  uint64_t cost = kMessage<v1::CallPhase> + kString;
  if (call.has_input_args()) cost += ListCost(call.input_args());
  if (call.has_input_kwargs()) cost += MapCost(call.input_kwargs());
  if (call.has_output()) cost += ListCost(call.output());
  if (call.has_parameters()) cost += MapCost(call.parameters());
  if (call.has_input()) cost += ListCost(call.input());
  if (call.has_gradients()) cost += MapCost(call.gradients());
  if (call.has_debug()) cost += ValueCost(call.debug()) + kString;
  return cost;
}

uint64_t RequestsCost(const v1::StepBegin& begin) {
  if (!begin.has_requests()) return 0;
  return kMessage<v1::StepRequests> + kString +
         static_cast<uint64_t>(begin.requests().requests_size()) *
             (kMessage<v1::RequestRows> + kString);
}

uint64_t RecordCost(const v1::Record& record) {
  const uint64_t cost = kMessage<v1::Record>;
  switch (record.body_case()) {
    case v1::Record::kCall:
      return cost + CallCost(record.call());
    case v1::Record::kStack:
      return cost + kMessage<v1::StackDef> +
             static_cast<uint64_t>(record.stack().frames_size()) * kString;
    case v1::Record::kStackUse:
      return cost + kMessage<v1::StackUse> + kString;
    case v1::Record::kEdge:
      return cost + kMessage<v1::ConstructEdge> + 2 * kString;
    case v1::Record::kLoss:
      return cost + kMessage<v1::LossEvent> +
             StringCost(record.loss().entry()) +
             StringCost(record.loss().detail());
    case v1::Record::kError:
      return cost + kMessage<v1::ErrorEvent> + kString;
    case v1::Record::kStepBegin:
      return cost + kMessage<v1::StepBegin> + 4 * kString +
             static_cast<uint64_t>(
                 record.step_begin().extra_statistics_size()) *
                 sizeof(int) +
             RequestsCost(record.step_begin());
    case v1::Record::kStepEnd:
      return cost + kMessage<v1::StepEnd>;
    case v1::Record::kTrace:
      return cost + kMessage<v1::CallTrace> +
             static_cast<uint64_t>(record.trace().items_size()) *
                 (kMessage<v1::CallTrace::Item> + kString);
    case v1::Record::kRunCard:
      return cost + kMessage<v1::RunCard> +
             static_cast<uint64_t>(record.run_card().facts_size()) *
                 (kMessage<v1::RunFact> + 3 * kString);
    case v1::Record::BODY_NOT_SET:
      break;
  }
  return cost;
}

}  // namespace

FrameSize SizeOf(const v1::UploadFrame& frame, uint64_t encoded_bytes) {
  uint64_t size = sizeof(v1::UploadFrame) + encoded_bytes;
  if (frame.has_offers()) {
    size += static_cast<uint64_t>(frame.offers().digests_size()) * kString;
  } else if (frame.has_batch()) {
    for (const v1::Record& record : frame.batch().records())
      size += RecordCost(record);
  }
  return {encoded_bytes, size};
}

FrameSize SizeOf(const ReceivedFrame& frame, uint64_t encoded_bytes) {
  FrameSize size = SizeOf(*frame, encoded_bytes);
  size.memory = std::max(size.memory, encoded_bytes + frame.bytes());
  return size;
}

}  // namespace rankprobe
