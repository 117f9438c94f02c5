// SPDX-License-Identifier: Apache-2.0
// Memory for the numbers of up to 16,384 tensors that were reduced in one
// stream: partial results on a device, their sums, and the pinned host memory
// that the sums are copied to. The memory of partial results is reused after
// the kernel that adds them up, which is safe because the stream runs kernels
// in order.
//
// Owner: DeviceStatistics, and a Delivery while the copy is under way. Not
// thread-safe. The caller has made the device's context current.
#ifndef RANKPROBE_AGENT_RUNTIME_DEVICE_STATISTICS_CHUNK_H_
#define RANKPROBE_AGENT_RUNTIME_DEVICE_STATISTICS_CHUNK_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/runtime/device/cuda_driver.h"
#include "common/tensor/summary.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

class StatisticsChunk {
 public:
  // Results that the kernels computed for one tensor.
  struct Slot {
    uint64_t number = 0;
    v1::DType dtype = v1::DTYPE_UNSPECIFIED;
    // Elements of the tensor, and how often each element that was read counts.
    uint64_t elements = 0;
    int64_t repeat = 1;
  };
  struct Place {
    CuDevicePointer partials = 0, header = 0;
  };
  static constexpr uint32_t kSlots = 16 << 10;
  static constexpr uint32_t kPartials = 64 << 10;

  static absl::StatusOr<std::unique_ptr<StatisticsChunk>> Create(
      const CudaDriver& driver, CuContext context);
  // Frees nothing, because that requires a driver that still works; see Free.
  ~StatisticsChunk() = default;
  StatisticsChunk(const StatisticsChunk&) = delete;
  StatisticsChunk& operator=(const StatisticsChunk&) = delete;

  CuContext context() const { return context_; }
  bool empty() const { return slots_.empty(); }
  uintptr_t stream() const { return stream_; }
  // Uses the chunk, which must be empty, for tensors of this stream from now
  // on.
  void Begin(uintptr_t stream) { stream_ = stream; }
  bool HasSlot() const { return slots_.size() < kSlots; }
  bool HasRoom(uint32_t partials) const {
    return kPartials - partials_ >= partials;
  }
  // Queues the sums of the partial results in the chunk's stream, so that there
  // is room again.
  absl::Status Fold(const CudaDriver& driver, CuFunction fold);
  // The place where the next tensor's results are written. Add takes it once
  // the launch has succeeded.
  Place Next() const;
  void Add(const Slot& slot, uint32_t partials);
  // Queues, in `stream`, which waits for the chunk's own, the sums and their
  // copy to the host.
  absl::Status Collect(const CudaDriver& driver, CuFunction fold,
                       CuStream stream);
  // Waits for Collect's copy, then writes to numbers[slot.number - first].
  absl::Status Wait(const CudaDriver& driver, uint64_t first,
                    ReducedNumbers* numbers);
  void Clear();
  // Waits for work that still writes here. The chunk must not be used
  // afterwards.
  void Free(const CudaDriver& driver);

 private:
  StatisticsChunk() = default;
  absl::Status FoldIn(const CudaDriver& driver, CuFunction fold,
                      CuStream stream);

  uintptr_t stream_ = 0;
  CuContext context_ = nullptr;
  CuDevicePointer device_ = 0;
  void* host_ = nullptr;
  CuEvent copied_ = nullptr;
  std::vector<Slot> slots_;
  // Partials in use, and number of slots whose sums are queued.
  uint32_t partials_ = 0;
  size_t folded_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_DEVICE_STATISTICS_CHUNK_H_
