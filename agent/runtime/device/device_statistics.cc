// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/device/device_statistics.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "agent/runtime/device/statistics_kernel.h"
#include "common/base/status_macros.h"
#include "common/tensor/resolved_tensor.h"
#include "common/tensor/strided_layout.h"

namespace rankprobe {

// One launch of a kernel of kKernels.
struct DeviceLaunch {
  size_t kernel = 0;
  uint32_t blocks = 0;
  device::ReduceArguments arguments{};
};

namespace {

// Limits of what stays on a device until it is taken: numbers, and chunks of
// 2.8 MiB each.
constexpr uint64_t kMaxSlots = 1 << 18;
constexpr size_t kMaxChunks = 16;

constexpr int kCaptureModeRelaxed = 2;

struct KernelName {
  const char* name;
  uint32_t vector;
};
constexpr KernelName kKernels[] = {
#define RANKPROBE_REDUCE_KERNEL(name, type, vector) \
  {"rankprobe_" #name, vector},
#include "agent/runtime/device/statistics_kernel_table.inc"
#undef RANKPROBE_REDUCE_KERNEL
};
constexpr size_t kKernelCount = std::size(kKernels);
constexpr size_t kNoKernel = kKernelCount;

// Index in kKernels of the kernel that reads vectors; the next one reads single
// elements. kNoKernel if the dtype has none.
size_t KernelOf(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_FLOAT16:
      return 0;
    case v1::DTYPE_BFLOAT16:
      return 2;
    case v1::DTYPE_FLOAT32:
      return 4;
    case v1::DTYPE_FLOAT64:
      return 6;
    case v1::DTYPE_BOOL:
    case v1::DTYPE_UINT8:
      return 8;
    case v1::DTYPE_INT8:
      return 10;
    case v1::DTYPE_INT16:
      return 12;
    case v1::DTYPE_INT32:
      return 14;
    case v1::DTYPE_INT64:
      return 16;
    default:
      return kNoKernel;
  }
}

// The launch that reduces `layout`: by vectors if each row begins at a multiple
// of their size, otherwise by single elements.
DeviceLaunch Plan(const StridedLayout& layout, size_t kernel,
                  size_t element_bytes) {
  DeviceLaunch out;
  device::ReduceArguments& a = out.arguments;
  a.data = reinterpret_cast<uint64_t>(layout.data);
  const auto bytes = static_cast<int64_t>(element_bytes);
  const int64_t vector = kKernels[kernel].vector;
  const bool aligned = a.data % device::kVectorBytes == 0;
  uint64_t elements = 1;
  for (const int64_t size : layout.sizes)
    elements *= static_cast<uint64_t>(size);
  if (layout.contiguous()) {
    out.kernel = aligned ? kernel : kernel + 1;
    a.units = aligned ? elements / static_cast<uint64_t>(vector) : elements;
    if (aligned) {
      a.tail = static_cast<uint32_t>(elements % static_cast<uint64_t>(vector));
      a.tail_data =
          a.data + (elements - a.tail) * static_cast<uint64_t>(element_bytes);
    }
  } else {
    const size_t last = layout.sizes.size() - 1;
    bool vectors = aligned && layout.strides[last] == 1 &&
                   layout.sizes[last] % vector == 0;
    for (size_t d = 0; d < last; ++d)
      vectors = vectors && layout.strides[d] % vector == 0;
    out.kernel = vectors ? kernel : kernel + 1;
    a.units = vectors ? elements / static_cast<uint64_t>(vector) : elements;
    a.dimensions = static_cast<uint32_t>(layout.sizes.size());
    for (size_t d = 0; d <= last; ++d) {
      const bool rows = vectors && d == last;
      a.sizes[last - d] = rows ? layout.sizes[d] / vector : layout.sizes[d];
      a.strides[last - d] =
          rows ? int64_t{device::kVectorBytes} : layout.strides[d] * bytes;
    }
  }
  const uint64_t of_block = uint64_t{device::kThreads} * device::kUnitsOfThread;
  out.blocks = static_cast<uint32_t>(std::clamp<uint64_t>(
      (a.units + of_block - 1) / of_block, 1, device::kMaxBlocks));
  return out;
}

}  // namespace

// The kernels of one device, and the work that was launched there since the
// last delivery.
struct DeviceStatistics::Device {
  CuDevice number = 0;
  CuContext context = nullptr;
  CuModule module = nullptr;
  CuFunction fold = nullptr;
  std::array<CuFunction, kKernelCount> reduce{};
  std::vector<std::unique_ptr<StatisticsChunk>> chunks, unused, failed;
  // An event after the last launch in each stream. For all but the default
  // stream it is recorded with the launch, because the stream may have been
  // destroyed when the numbers are taken.
  absl::flat_hash_map<uintptr_t, CuEvent> events;
  absl::InlinedVector<uintptr_t, 4> streams;
};

namespace {

// Makes a context current for the duration of a scope, which most functions of
// the driver require.
class InContext {
 public:
  InContext(const CudaDriver& driver, CuContext context)
      : driver_(driver),
        status_(
            driver.Check(driver.CtxPushCurrent(context), "cuCtxPushCurrent")) {}
  ~InContext() {
    CuContext popped;
    if (status_.ok()) driver_.CtxPopCurrent(&popped);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
  const absl::Status& status() const { return status_; }

 private:
  const CudaDriver& driver_;
  const absl::Status status_;
};

// Lets this thread allocate while another thread captures a graph in global
// mode, which an allocation would otherwise invalidate.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaDriver& driver) : driver_(driver) {
    driver_.ThreadExchangeStreamCaptureMode(&mode_);
  }
  ~RelaxedCapture() { driver_.ThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const CudaDriver& driver_;
  int mode_ = kCaptureModeRelaxed;
};

CuStream StreamOf(uintptr_t stream) {
  return reinterpret_cast<CuStream>(stream);  // NOLINT: as PyTorch gives it
}

absl::Status NotCapturing(const CudaDriver& driver, uintptr_t stream) {
  int status = 0;
  // An error means that the default stream must not be used while another one
  // captures.
  if (driver.StreamIsCapturing(StreamOf(stream), &status) != 0 || status != 0)
    return absl::FailedPreconditionError("the stream captures a CUDA graph");
  return absl::OkStatus();
}

}  // namespace

DeviceStatistics::DeviceStatistics(std::string library, std::string ptx)
    : library_(std::move(library)),
      ptx_(std::move(ptx)),
      is_off_(library_.empty()) {}

DeviceStatistics::~DeviceStatistics() {
  const absl::MutexLock lock(&mutex_);
  if (forks_.InChild()) return;
  for (const auto& [ordinal, device] : devices_) {
    if (device == nullptr) continue;
    {
      const InContext in_context(*driver_, device->context);
      if (!in_context.status().ok()) continue;
      const RelaxedCapture relaxed(*driver_);
      for (const auto* list :
           {&device->chunks, &device->unused, &device->failed}) {
        for (const auto& chunk : *list) chunk->Free(*driver_);
      }
      for (const auto& [stream, event] : device->events)
        driver_->EventDestroy(event);
      if (device->module != nullptr) driver_->ModuleUnload(device->module);
    }
    driver_->DevicePrimaryCtxRelease(device->number);
  }
}

uint64_t DeviceStatistics::TakeSlot() {
  const absl::MutexLock lock(&mutex_);
  return next_++;
}

uint64_t DeviceStatistics::first_slot() const {
  const absl::MutexLock lock(&mutex_);
  return first_;
}

uint64_t DeviceStatistics::next_slot() const {
  const absl::MutexLock lock(&mutex_);
  return next_;
}

bool DeviceStatistics::full() const {
  const absl::MutexLock lock(&mutex_);
  return full_;
}

std::string DeviceStatistics::TakeError() {
  const absl::MutexLock lock(&mutex_);
  return std::exchange(error_, {});
}

std::vector<int> DeviceStatistics::Devices() const {
  const absl::MutexLock lock(&mutex_);
  std::vector<int> ordinals;
  for (const auto& [ordinal, device] : devices_) ordinals.push_back(ordinal);
  return ordinals;
}

absl::StatusOr<uint64_t> DeviceStatistics::Reduce(const Tensor& tensor) {
  const size_t kernel = KernelOf(tensor.view.dtype);
  if (kernel == kNoKernel) return absl::UnimplementedError("no such kernel");
  const ResolvedTensor resolved(tensor.view);
  const StridedLayout layout = LayoutOf(resolved, /*in_order=*/false);
  if (!resolved.has_memory() || layout.sizes.size() > device::kMaxDimensions)
    return absl::UnimplementedError("not for the kernel");
  const absl::MutexLock lock(&mutex_);
  if (is_off_) return absl::UnimplementedError("the kernel is off");
  uint64_t* known = nullptr;
  if (tensor.storage != 0) {
    if (generation_ != tensor.generation) seen_.clear();
    generation_ = tensor.generation;
    auto [it, is_new] = seen_.try_emplace(
        Key{tensor.storage, tensor.version, tensor.device, tensor.view.dtype,
            layout.data, layout.sizes, layout.strides, layout.repeat});
    if (!is_new && it->second != 0) return it->second;
    known = &it->second;
  }
  auto device = DeviceOf(tensor.device);
  if (!device.ok()) return Broken(device.status());
  DeviceLaunch launch = Plan(layout, kernel, resolved.element_bytes);
  StatisticsChunk::Slot slot{next_, tensor.view.dtype,
                             static_cast<uint64_t>(resolved.elements),
                             layout.repeat};
  const absl::Status status = Launch(&launch, tensor.stream, *device, slot);
  if (status.code() == absl::StatusCode::kInternal) return Broken(status);
  if (!status.ok()) return status;
  if (known != nullptr) *known = next_;
  full_ = full_ || next_ - first_ >= kMaxSlots;
  return next_++;
}

absl::Status DeviceStatistics::Launch(DeviceLaunch* launch, uintptr_t stream,
                                      Device* device,
                                      const StatisticsChunk::Slot& slot) {
  const InContext in_context(*driver_, device->context);
  RP_RETURN_IF_ERROR(in_context.status());
  RP_RETURN_IF_ERROR(NotCapturing(*driver_, stream));
  RP_ASSIGN_OR_RETURN(StatisticsChunk* const chunk,
                      ChunkWithRoom(device, stream, launch->blocks));
  const StatisticsChunk::Place place = chunk->Next();
  launch->arguments.partials = place.partials;
  launch->arguments.header = place.header;
  void* parameters[] = {&launch->arguments};
  RP_RETURN_IF_ERROR(driver_->Check(
      driver_->LaunchKernel(device->reduce[launch->kernel], launch->blocks, 1,
                            1, device::kThreads, 1, 1, 0, StreamOf(stream),
                            parameters, nullptr),
      "cuLaunchKernel"));
  RP_RETURN_IF_ERROR(NoteStream(device, stream));
  chunk->Add(slot, launch->blocks);
  return absl::OkStatus();
}

absl::Status DeviceStatistics::NoteStream(Device* device, uintptr_t stream) {
  if (!absl::c_linear_search(device->streams, stream))
    device->streams.push_back(stream);
  if (stream == 0) return absl::OkStatus();
  CuEvent& event = device->events[stream];
  if (event == nullptr) {
    RP_RETURN_IF_ERROR(driver_->Check(
        driver_->EventCreate(&event, kCuEventDisableTiming), "cuEventCreate"));
  }
  return driver_->Check(driver_->EventRecord(event, StreamOf(stream)),
                        "cuEventRecord");
}

absl::StatusOr<StatisticsChunk*> DeviceStatistics::ChunkWithRoom(
    Device* device, uintptr_t stream, uint32_t partials) {
  std::vector<std::unique_ptr<StatisticsChunk>>& chunks = device->chunks;
  const auto found = absl::c_find_if(chunks, [stream](const auto& chunk) {
    return chunk->stream() == stream && chunk->HasSlot();
  });
  if (found != chunks.end()) {
    if (!(*found)->HasRoom(partials))
      RP_RETURN_IF_ERROR((*found)->Fold(*driver_, device->fold));
    return found->get();
  }
  if (chunks.size() == kMaxChunks) {
    full_ = true;
    return absl::ResourceExhaustedError("no room for more numbers");
  }
  if (device->unused.empty()) {
    const RelaxedCapture relaxed(*driver_);
    RP_ASSIGN_OR_RETURN(std::unique_ptr<StatisticsChunk> chunk,
                        StatisticsChunk::Create(*driver_, device->context));
    device->unused.push_back(std::move(chunk));
  }
  chunks.push_back(std::move(device->unused.back()));
  device->unused.pop_back();
  chunks.back()->Begin(stream);
  return chunks.back().get();
}

absl::StatusOr<DeviceStatistics::Device*> DeviceStatistics::DeviceOf(
    int ordinal) {
  std::unique_ptr<Device>& entry = devices_[ordinal];
  if (entry != nullptr) return entry.get();
  if (!driver_.has_value()) {
    RP_ASSIGN_OR_RETURN(driver_, CudaDriver::Load(library_));
    RP_RETURN_IF_ERROR(driver_->Check(driver_->Init(0), "cuInit"));
  }
  CuDevice number = 0;
  RP_RETURN_IF_ERROR(
      driver_->Check(driver_->DeviceGet(&number, ordinal), "cuDeviceGet"));
  unsigned flags = 0;
  int active = 0;
  RP_RETURN_IF_ERROR(
      driver_->Check(driver_->DevicePrimaryCtxGetState(number, &flags, &active),
                     "cuDevicePrimaryCtxGetState"));
  // Retaining an inactive context would create it, and only the program's is
  // used.
  if (active == 0)
    return absl::InternalError(
        absl::StrCat("CUDA device ", ordinal, " has no active context"));
  auto retained = std::make_unique<Device>();
  retained->number = number;
  RP_RETURN_IF_ERROR(driver_->Check(
      driver_->DevicePrimaryCtxRetain(&retained->context, number),
      "cuDevicePrimaryCtxRetain"));
  // A failure from here on turns the kernel off; the destructor releases the
  // context.
  entry = std::move(retained);
  Device* const device = entry.get();
  const InContext in_context(*driver_, device->context);
  RP_RETURN_IF_ERROR(in_context.status());
  const RelaxedCapture relaxed(*driver_);
  RP_RETURN_IF_ERROR(
      driver_->Check(driver_->ModuleLoadData(&device->module, ptx_.c_str()),
                     "cuModuleLoadData"));
  const CudaDriver& driver = *driver_;
  const auto find = [&](const char* name, CuFunction* function) {
    return driver.Check(
        driver.ModuleGetFunction(function, device->module, name),
        "cuModuleGetFunction");
  };
  RP_RETURN_IF_ERROR(find("rankprobe_fold", &device->fold));
  for (size_t i = 0; i < kKernelCount; ++i)
    RP_RETURN_IF_ERROR(find(kKernels[i].name, &device->reduce[i]));
  return device;
}

absl::Status DeviceStatistics::Broken(absl::Status status) {
  is_off_ = true;
  error_ = std::string(status.message());
  return status;
}

DeviceStatistics::Delivery DeviceStatistics::TakePending(
    const absl::flat_hash_map<int, uintptr_t>& streams) {
  const absl::MutexLock lock(&mutex_);
  Delivery out;
  out.owner_ = this;
  out.first_ = std::exchange(first_, next_);
  out.end_ = next_;
  full_ = false;
  // The numbers are taken, so equal tensors need new slots.
  seen_.clear();
  for (auto& [ordinal, device] : devices_) {
    if (device == nullptr) continue;
    // Chunks that were taken for a launch that failed.
    for (size_t i = device->chunks.size(); i-- > 0;) {
      if (!device->chunks[i]->empty()) continue;
      device->unused.push_back(std::move(device->chunks[i]));
      device->chunks.erase(device->chunks.begin() + static_cast<int64_t>(i));
    }
    if (device->chunks.empty()) continue;
    const auto stream = streams.find(ordinal);
    const absl::Status status =
        Collect(device.get(), stream == streams.end() ? 0 : stream->second);
    device->streams.clear();
    std::vector<std::unique_ptr<StatisticsChunk>> chunks =
        std::exchange(device->chunks, {});
    if (!status.ok()) {
      out.status_ = status;
      if (status.code() == absl::StatusCode::kInternal)
        out.status_ = Broken(status);
      for (auto& chunk : chunks) device->failed.push_back(std::move(chunk));
      continue;
    }
    out.driver_ = driver_;
    for (auto& chunk : chunks)
      out.chunks_.push_back({ordinal, std::move(chunk)});
  }
  return out;
}

absl::Status DeviceStatistics::Collect(Device* device, uintptr_t stream) {
  const InContext in_context(*driver_, device->context);
  RP_RETURN_IF_ERROR(in_context.status());
  RP_RETURN_IF_ERROR(NotCapturing(*driver_, stream));
  for (const uintptr_t other : device->streams) {
    if (other == stream) continue;
    CuEvent& event = device->events[other];
    // The default stream always exists, so its event is recorded only now.
    if (other == 0) {
      if (event == nullptr) {
        RP_RETURN_IF_ERROR(
            driver_->Check(driver_->EventCreate(&event, kCuEventDisableTiming),
                           "cuEventCreate"));
      }
      RP_RETURN_IF_ERROR(driver_->Check(
          driver_->EventRecord(event, StreamOf(other)), "cuEventRecord"));
    }
    RP_RETURN_IF_ERROR(
        driver_->Check(driver_->StreamWaitEvent(StreamOf(stream), event, 0),
                       "cuStreamWaitEvent"));
  }
  for (const auto& chunk : device->chunks)
    RP_RETURN_IF_ERROR(
        chunk->Collect(*driver_, device->fold, StreamOf(stream)));
  return absl::OkStatus();
}

absl::Status DeviceStatistics::Delivery::Wait(ReducedNumbers* numbers) {
  absl::Status status = status_;
  for (auto& [ordinal, chunk] : chunks_) {
    const InContext in_context(*driver_, chunk->context());
    absl::Status waited = in_context.status();
    if (waited.ok()) waited = chunk->Wait(*driver_, first_, numbers);
    if (waited.ok()) chunk->Clear();
    owner_->GiveBack(ordinal, std::move(chunk), !waited.ok());
    status.Update(waited);
  }
  chunks_.clear();
  return status;
}

void DeviceStatistics::GiveBack(int ordinal,
                                std::unique_ptr<StatisticsChunk> chunk,
                                bool failed) {
  const absl::MutexLock lock(&mutex_);
  Device& device = *devices_[ordinal];
  (failed ? device.failed : device.unused).push_back(std::move(chunk));
}

}  // namespace rankprobe
