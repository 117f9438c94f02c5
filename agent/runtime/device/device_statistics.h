// SPDX-License-Identifier: Apache-2.0
// Statistics of tensors on CUDA devices: one launch of the statistics kernel a
// tensor, in the stream that the program computes in, without an operator of
// PyTorch, an allocation or a wait. The numbers stay on the device until
// TakePending; Delivery::Wait brings all of them to the host with one copy.
//
// Owner: the Python front end's DeviceReader, which also takes slots here for
// tensors that it reads itself. Thread-safe; Reduce holds a mutex for the time
// of one launch. Delivery::Wait waits for the device and needs no lock.
//
// Failure: a tensor that cannot be reduced is left to the caller (non-OK). An
// error of the driver turns the kernel off for the rest of the process, because
// the error would occur again; error() returns it. Only the program's context
// is used, memory comes from the driver and not from PyTorch's allocator, and
// nothing is launched in a stream that captures a graph.
#ifndef RANKPROBE_AGENT_RUNTIME_DEVICE_DEVICE_STATISTICS_H_
#define RANKPROBE_AGENT_RUNTIME_DEVICE_DEVICE_STATISTICS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "agent/runtime/device/cuda_driver.h"
#include "agent/runtime/device/statistics_chunk.h"
#include "common/base/fork_guard.h"
#include "common/tensor/strided_layout.h"
#include "common/tensor/summary.h"
#include "common/tensor/tensor_view.h"

namespace rankprobe {

struct DeviceLaunch;

class DeviceStatistics {
 public:
  // A tensor on CUDA device `device`, written by work already queued in
  // `stream`.
  struct Tensor {
    TensorView view;
    int device = 0;
    uintptr_t stream = 0;
    // Identify the content: equal identities of equal views have equal numbers,
    // as long as the generation is the same and the numbers are not taken. 0:
    // not known.
    uint64_t storage = 0, version = 0;
    int64_t generation = 0;
  };

  // The numbers of the slots from `first` to `end` (exclusive).
  class Delivery {
   public:
    Delivery() = default;
    Delivery(Delivery&&) = default;
    Delivery& operator=(Delivery&&) = default;
    uint64_t first() const { return first_; }
    uint64_t end() const { return end_; }
    // Waits for the device, then writes the numbers of the slots that Reduce
    // returned; `numbers` has one element for each slot. Call once.
    absl::Status Wait(ReducedNumbers* numbers);

   private:
    friend class DeviceStatistics;
    DeviceStatistics* owner_ = nullptr;
    absl::optional<CudaDriver> driver_;
    uint64_t first_ = 0, end_ = 0;
    absl::Status status_;
    // Chunks with the number of their device.
    std::vector<std::pair<int, std::unique_ptr<StatisticsChunk>>> chunks_;
  };

  // `library`: file name of the driver library, loaded at first use; if empty,
  // none is. `ptx`: the compiled kernels.
  DeviceStatistics(std::string library, std::string ptx);
  // Frees the memory on the devices, except in the child of a fork, which has
  // none. No Delivery may be left.
  ~DeviceStatistics();
  DeviceStatistics(const DeviceStatistics&) = delete;
  DeviceStatistics& operator=(const DeviceStatistics&) = delete;

  // Returns a new slot. Slots count up and are never reused.
  uint64_t TakeSlot();
  uint64_t first_slot() const;
  uint64_t next_slot() const;

  // Returns the slot that will receive the numbers of `tensor`, which must have
  // elements. UNIMPLEMENTED: the kernel does not support the tensor.
  // FAILED_PRECONDITION: its stream captures a graph. RESOURCE_EXHAUSTED: there
  // is no room until TakePending. INTERNAL: the driver failed.
  absl::StatusOr<uint64_t> Reduce(const Tensor& tensor);
  // Whether the devices hold as many numbers as they should: call TakePending.
  bool full() const;
  // Returns, once, the error that turned the kernel off; empty if there is
  // none.
  std::string TakeError();

  // Returns the devices on which tensors were reduced.
  std::vector<int> Devices() const;
  // Returns all slots since the last call. `streams`: for each device the
  // stream that the program computes in now (0 if absent); the copy is queued
  // there, after the work of all other streams.
  Delivery TakePending(const absl::flat_hash_map<int, uintptr_t>& streams);

 private:
  struct Device;
  // Storage, version, device, dtype, layout, generation.
  using Key =
      std::tuple<uint64_t, uint64_t, int, v1::DType, const char*,
                 StridedLayout::Extents, StridedLayout::Extents, int64_t>;

  absl::StatusOr<Device*> DeviceOf(int ordinal)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<StatisticsChunk*> ChunkWithRoom(Device* device,
                                                 uintptr_t stream,
                                                 uint32_t partials)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Launch(DeviceLaunch* launch, uintptr_t stream, Device* device,
                      const StatisticsChunk::Slot& slot)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Collect(Device* device, uintptr_t stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NoteStream(Device* device, uintptr_t stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Turns the kernel off because of `status`, an error of the driver.
  absl::Status Broken(absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns a chunk for reuse; not if it has `failed`.
  void GiveBack(int ordinal, std::unique_ptr<StatisticsChunk> chunk,
                bool failed);

  const std::string library_, ptx_;
  const ForkGuard forks_;
  mutable absl::Mutex mutex_;
  absl::optional<CudaDriver> driver_ ABSL_GUARDED_BY(mutex_);
  bool is_off_ ABSL_GUARDED_BY(mutex_) = false;
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
  std::string error_ ABSL_GUARDED_BY(mutex_);
  uint64_t first_ ABSL_GUARDED_BY(mutex_) = 1, next_
                                               ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<int, std::unique_ptr<Device>> devices_
      ABSL_GUARDED_BY(mutex_);
  int64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<Key, uint64_t> seen_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_DEVICE_DEVICE_STATISTICS_H_
