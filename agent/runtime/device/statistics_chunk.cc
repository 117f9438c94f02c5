// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/device/statistics_chunk.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "agent/runtime/device/statistics_kernel.h"
#include "common/base/status_macros.h"
#include "common/tensor/dtype.h"
#include "common/tensor/statistics_rules.h"

namespace rankprobe {
namespace {

constexpr size_t kPartialBytes = sizeof(device::FloatPartial);

// The device memory has headers, results and partials, in this order.
constexpr uint64_t kResultsAt =
    uint64_t{StatisticsChunk::kSlots} * sizeof(device::Header);
constexpr uint64_t kPartialsAt =
    kResultsAt + uint64_t{StatisticsChunk::kSlots} * kPartialBytes;
constexpr uint64_t kDeviceBytes =
    kPartialsAt + uint64_t{StatisticsChunk::kPartials} * kPartialBytes;

ReducedNumbers Numbers(const StatisticsChunk::Slot& slot, const void* result) {
  ReducedNumbers out{};
  if (FamilyOf(slot.dtype) != Family::kFloat) {
    device::IntPartial p;
    std::memcpy(&p, result, sizeof(p));
    out.words = {static_cast<uint64_t>(p.max), static_cast<uint64_t>(p.min), 0,
                 0};
    return out;
  }
  device::FloatPartial p;
  std::memcpy(&p, result, sizeof(p));
  if (std::isnan(p.sum_squares))
    p.max = p.min = std::numeric_limits<double>::quiet_NaN();
  const auto repeat = static_cast<double>(slot.repeat);
  const std::array<double, 4> values = {
      p.max, p.min, p.sum * repeat / static_cast<double>(slot.elements),
      NormOfSquares(slot.dtype, p.sum_squares * repeat)};
  std::memcpy(out.words.data(), values.data(), sizeof(values));
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StatisticsChunk>> StatisticsChunk::Create(
    const CudaDriver& driver, CuContext context) {
  std::unique_ptr<StatisticsChunk> chunk(new StatisticsChunk());
  chunk->context_ = context;
  RP_RETURN_IF_ERROR(driver.Check(
      driver.MemAlloc(&chunk->device_, kDeviceBytes), "cuMemAlloc"));
  absl::Status status = driver.Check(
      driver.MemHostAlloc(&chunk->host_, kSlots * kPartialBytes, 0),
      "cuMemHostAlloc");
  if (status.ok()) {
    status =
        driver.Check(driver.EventCreate(&chunk->copied_, kCuEventDisableTiming),
                     "cuEventCreate");
    if (!status.ok()) driver.MemFreeHost(chunk->host_);
  }
  if (!status.ok()) {
    driver.MemFree(chunk->device_);
    return status;
  }
  return chunk;
}

StatisticsChunk::Place StatisticsChunk::Next() const {
  return {device_ + kPartialsAt + partials_ * kPartialBytes,
          device_ + slots_.size() * sizeof(device::Header)};
}

void StatisticsChunk::Add(const Slot& slot, uint32_t partials) {
  slots_.push_back(slot);
  partials_ += partials;
}

absl::Status StatisticsChunk::Fold(const CudaDriver& driver, CuFunction fold) {
  return FoldIn(driver, fold,
                reinterpret_cast<CuStream>(stream_));  // NOLINT: a handle
}

absl::Status StatisticsChunk::FoldIn(const CudaDriver& driver, CuFunction fold,
                                     CuStream stream) {
  if (folded_ == slots_.size()) return absl::OkStatus();
  device::FoldArguments arguments{
      device_ + folded_ * sizeof(device::Header),
      device_ + kResultsAt + folded_ * kPartialBytes};
  void* parameters[] = {&arguments};
  RP_RETURN_IF_ERROR(driver.Check(
      driver.LaunchKernel(fold, static_cast<unsigned>(slots_.size() - folded_),
                          1, 1, device::kThreads, 1, 1, 0, stream, parameters,
                          nullptr),
      "cuLaunchKernel"));
  folded_ = slots_.size();
  partials_ = 0;
  return absl::OkStatus();
}

absl::Status StatisticsChunk::Collect(const CudaDriver& driver, CuFunction fold,
                                      CuStream stream) {
  RP_RETURN_IF_ERROR(FoldIn(driver, fold, stream));
  RP_RETURN_IF_ERROR(driver.Check(
      driver.MemcpyDtoHAsync(host_, device_ + kResultsAt,
                             slots_.size() * kPartialBytes, stream),
      "cuMemcpyDtoHAsync"));
  return driver.Check(driver.EventRecord(copied_, stream), "cuEventRecord");
}

absl::Status StatisticsChunk::Wait(const CudaDriver& driver, uint64_t first,
                                   ReducedNumbers* numbers) {
  RP_RETURN_IF_ERROR(
      driver.Check(driver.EventSynchronize(copied_), "cuEventSynchronize"));
  const char* at = static_cast<const char*>(host_);
  for (const Slot& slot : slots_) {
    numbers[slot.number - first] = Numbers(slot, at);
    at += kPartialBytes;
  }
  return absl::OkStatus();
}

void StatisticsChunk::Free(const CudaDriver& driver) {
  driver.MemFree(device_);
  driver.MemFreeHost(host_);
  driver.EventDestroy(copied_);
}

void StatisticsChunk::Clear() {
  slots_.clear();
  partials_ = 0;
  folded_ = 0;
}

}  // namespace rankprobe
