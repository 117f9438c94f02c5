// SPDX-License-Identifier: Apache-2.0
// Conversion of an at::Tensor to the recorder's view of a tensor. Thread-safe
// per instance where noted.
#ifndef RANKPROBE_AGENT_LIBTORCH_TENSOR_ADAPTER_H_
#define RANKPROBE_AGENT_LIBTORCH_TENSOR_ADAPTER_H_

#include <torch/torch.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "agent/runtime/recorder/recorder.h"
#include "common/base/limits.h"

namespace rankprobe {

// A counter of the calling thread. While it is above zero, ATen calls are not
// recorded: they are the debugger's own, inside another call, or inside a
// backward node.
int& SuppressionDepth();

class SuppressObserver {
 public:
  SuppressObserver() { ++SuppressionDepth(); }
  ~SuppressObserver() { --SuppressionDepth(); }
  SuppressObserver(const SuppressObserver&) = delete;
  SuppressObserver& operator=(const SuppressObserver&) = delete;
};

// A tensor's elements where this process can read them. Tensors of other
// devices, and lazily conjugated or negated ones, are copied to the host first,
// which waits for the device.
class HostTensor {
 public:
  explicit HostTensor(const at::Tensor& tensor);
  // Returns false for a tensor without readable elements: undefined, sparse,
  // quantised and meta tensors, and dtypes that the wire has no number for.
  bool valid() const { return readable_.defined(); }
  // Points into this object and the tensor; no identity.
  const TensorInfo& info() const { return info_; }
  bool copied() const { return copied_; }
  HostTensor(const HostTensor&) = delete;
  HostTensor& operator=(const HostTensor&) = delete;

 private:
  at::Tensor readable_;
  bool copied_ = false;
  TensorInfo info_;
};

// Called by the hooks that PrecisionDebugger::Save leaves in the graph; never
// throws.
void RecordSavedGradient(Recorder* recorder, const SavedValue& saved,
                         const at::Tensor& gradient);

class TensorAdapter {
 public:
  // Writes `tensor` to `out`; undefined tensors stay null. Sparse, quantised
  // and meta tensors have shape and type only. Tensors of other devices are
  // copied to the host first, which waits for the device.
  void Add(CallBuilder& builder, const at::Tensor& tensor, v1::Value* out);
  // Values beyond the limits of common/base/limits.h are cut and end with a
  // CutValue.
  void Add(CallBuilder& builder, const c10::IValue& value, v1::Value* out);

  // Releases the storages seen so far; called at the end of a step.
  void EndStep();

 private:
  // Remaining limits of a value.
  struct Room {
    uint64_t values = kMaxCallValues;
    uint64_t tensors = kMaxCallTensors;
    int messages = kMaxValueMessages;
  };
  void AddValue(CallBuilder& builder, const c10::IValue& value, Room* room,
                v1::Value* out);
  // `items` is anything with size() and iterators over IValues.
  template <typename Items>
  void AddItems(CallBuilder& builder, const Items& items, Room* room,
                v1::Value* out);

  // Weak references keep the address of a storage from being reused while the
  // recorder identifies the storage by it; the memory itself may be freed.
  std::mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> held_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_LIBTORCH_TENSOR_ADAPTER_H_
