// SPDX-License-Identifier: Apache-2.0
// A driver library that plays one CUDA device on the host, for tests without a
// GPU. Memory of the device is host memory. A launch reads its tensor at once,
// as the program's later work may not change what it sees, but what it writes
// appears only when somebody waits for the stream, so whoever reads too early
// reads zeros. Calls that are out of order for a real driver (no current
// context, a stream that captures) fail as there.
//
// fake_cuda_reset, _fail, _capture and _count are for the tests. Thread-safe.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "agent/runtime/device/cuda_driver.h"
#include "agent/runtime/device/statistics_kernel_host.h"

namespace device = rankprobe::device;
using rankprobe::CuContext;
using rankprobe::CuEvent;
using rankprobe::CuFunction;
using rankprobe::CuModule;
using rankprobe::CuStream;

namespace {

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kInvalidContext = 201,
              kNotFound = 500, kCaptureImplicit = 906;

struct Stream {
  std::deque<std::function<void()>> work;
  uint64_t queued = 0, done = 0;
};
struct Event {
  uintptr_t stream = 0;
  uint64_t until = 0;
};
struct Function {
  std::string name;
  device::HostReduce reduce = nullptr;
};

struct Fake {
  std::mutex mutex;
  std::map<uintptr_t, Stream> streams;
  std::map<std::string, int> failures, counts;
  std::vector<std::unique_ptr<Function>> functions;
  uintptr_t capturing = UINTPTR_MAX;
  int context = 0;
};

Fake& State() {
  static Fake* const fake = new Fake;
  return *fake;
}
thread_local int current_contexts = 0;

CuContext FakeContext() {
  return reinterpret_cast<CuContext>(&State().context);
}
uintptr_t Number(CuStream stream) {
  return reinterpret_cast<uintptr_t>(stream);
}

// Runs the work in `stream` up to `until`.
void Run(uintptr_t stream, uint64_t until) {
  Stream& s = State().streams[stream];
  while (s.done < until) {
    const std::function<void()> work = std::move(s.work.front());
    s.work.pop_front();
    ++s.done;
    work();
  }
}
void Queue(uintptr_t stream, std::function<void()> work) {
  Stream& s = State().streams[stream];
  s.work.push_back(std::move(work));
  ++s.queued;
}

// The result of a call that would otherwise succeed. State().mutex must be
// held.
int Called(const char* name, bool needs_context = true) {
  ++State().counts[name];
  if (const auto at = State().failures.find(name);
      at != State().failures.end() && at->second != 0) {
    return at->second;
  }
  return needs_context && current_contexts == 0 ? kInvalidContext : 0;
}

}  // namespace

extern "C" {

void fake_cuda_reset() {
  const std::lock_guard<std::mutex> lock(State().mutex);
  State().streams.clear();
  State().failures.clear();
  State().counts.clear();
  State().capturing = UINTPTR_MAX;
}
// Makes `name`, such as "cuLaunchKernel", return `result`; 0 ends that.
void fake_cuda_fail(const char* name, int result) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  State().failures[name] = result;
}
// `stream` captures a graph; UINTPTR_MAX: no stream does.
void fake_cuda_capture(uintptr_t stream) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  State().capturing = stream;
}
int fake_cuda_count(const char* name) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  return State().counts[name];
}

int cuInit(unsigned) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  return Called("cuInit", false);
}
int cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR_FAKE";
  return 0;
}
int cuDeviceGet(int* number, int ordinal) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  *number = ordinal;
  return ordinal == 0 ? Called("cuDeviceGet", false) : kInvalidValue;
}
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  *flags = 0;
  *active = 1;
  return Called("cuDevicePrimaryCtxGetState", false);
}
int cuDevicePrimaryCtxRetain(CuContext* context, int) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  *context = FakeContext();
  return Called("cuDevicePrimaryCtxRetain", false);
}
int cuDevicePrimaryCtxRelease_v2(int) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  return Called("cuDevicePrimaryCtxRelease", false);
}
int cuCtxPushCurrent_v2(CuContext context) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  if (context != FakeContext()) return kInvalidContext;
  ++current_contexts;
  return Called("cuCtxPushCurrent", false);
}
int cuCtxPopCurrent_v2(CuContext* context) {
  *context = FakeContext();
  --current_contexts;
  return 0;
}
int cuModuleLoadData(CuModule* module, const void* image) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  *module = reinterpret_cast<CuModule>(&State().context);
  if (std::strstr(static_cast<const char*>(image), ".entry rankprobe_fold") ==
      nullptr) {
    return kInvalidValue;
  }
  return Called("cuModuleLoadData");
}
int cuModuleUnload(CuModule) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  return Called("cuModuleUnload");
}
int cuModuleGetFunction(CuFunction* function, CuModule, const char* name) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  auto found = std::make_unique<Function>();
  found->name = name;
  found->reduce = device::HostReduceOf(name);
  if (found->reduce == nullptr && found->name != "rankprobe_fold")
    return kNotFound;
  *function = reinterpret_cast<CuFunction>(found.get());
  State().functions.push_back(std::move(found));
  return Called("cuModuleGetFunction");
}

int cuLaunchKernel(CuFunction function, unsigned grid, unsigned, unsigned,
                   unsigned block, unsigned, unsigned, unsigned,
                   CuStream handle, void** arguments, void**) {
  const uintptr_t stream = Number(handle);
  const std::lock_guard<std::mutex> lock(State().mutex);
  const int result = Called("cuLaunchKernel");
  if (result != 0) return result;
  if (block != device::kThreads || grid == 0) return kInvalidValue;
  const auto* const kernel = reinterpret_cast<Function*>(function);
  if (kernel->reduce == nullptr) {
    device::FoldArguments a;
    std::memcpy(&a, arguments[0], sizeof(a));
    Queue(stream, [a, grid] { device::HostFold(a, grid); });
    return 0;
  }
  device::ReduceArguments a;
  std::memcpy(&a, arguments[0], sizeof(a));
  auto partials = std::make_shared<std::vector<device::FloatPartial>>(grid);
  auto header = std::make_shared<device::Header>();
  device::ReduceArguments aside = a;
  aside.partials = reinterpret_cast<uint64_t>(partials->data());
  aside.header = reinterpret_cast<uint64_t>(header.get());
  kernel->reduce(aside, grid);
  header->partials = a.partials;
  Queue(stream, [a, partials, header] {
    std::memcpy(reinterpret_cast<void*>(a.partials), partials->data(),
                partials->size() * sizeof(device::FloatPartial));
    std::memcpy(reinterpret_cast<void*>(a.header), header.get(),
                sizeof(*header));
  });
  return 0;
}

int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  const int result = Called("cuMemAlloc");
  if (result != 0) return result;
  *address = reinterpret_cast<uint64_t>(std::calloc(1, bytes));
  return *address == 0 ? kOutOfMemory : 0;
}
int cuMemFree_v2(uint64_t address) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  std::free(reinterpret_cast<void*>(address));
  return Called("cuMemFree");
}
int cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  const int result = Called("cuMemHostAlloc");
  if (result != 0) return result;
  *address = std::calloc(1, bytes);
  return *address == nullptr ? kOutOfMemory : 0;
}
int cuMemFreeHost(void* address) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  std::free(address);
  return Called("cuMemFreeHost");
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes,
                         CuStream handle) {
  const uintptr_t stream = Number(handle);
  const std::lock_guard<std::mutex> lock(State().mutex);
  const int result = Called("cuMemcpyDtoHAsync");
  if (result != 0) return result;
  Queue(stream, [to, from, bytes] {
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  });
  return 0;
}

int cuEventCreate(CuEvent* event, unsigned) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  const int result = Called("cuEventCreate");
  if (result != 0) return result;
  *event = reinterpret_cast<CuEvent>(new Event);
  return 0;
}
int cuEventDestroy_v2(CuEvent event) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  delete reinterpret_cast<Event*>(event);
  return Called("cuEventDestroy");
}
int cuEventRecord(CuEvent event, CuStream handle) {
  const uintptr_t stream = Number(handle);
  const std::lock_guard<std::mutex> lock(State().mutex);
  const int result = Called("cuEventRecord");
  if (result != 0) return result;
  *reinterpret_cast<Event*>(event) = {stream, State().streams[stream].queued};
  return 0;
}
int cuEventSynchronize(CuEvent event) {
  const std::lock_guard<std::mutex> lock(State().mutex);
  const int result = Called("cuEventSynchronize");
  if (result != 0) return result;
  const Event e = *reinterpret_cast<Event*>(event);
  Run(e.stream, e.until);
  return 0;
}
int cuStreamWaitEvent(CuStream handle, CuEvent event, unsigned) {
  const uintptr_t stream = Number(handle);
  const std::lock_guard<std::mutex> lock(State().mutex);
  const int result = Called("cuStreamWaitEvent");
  if (result != 0) return result;
  const Event e = *reinterpret_cast<Event*>(event);
  Queue(stream, [e] { Run(e.stream, e.until); });
  return 0;
}
int cuStreamIsCapturing(CuStream handle, int* status) {
  const uintptr_t stream = Number(handle);
  const std::lock_guard<std::mutex> lock(State().mutex);
  const int result = Called("cuStreamIsCapturing");
  if (result != 0) return result;
  *status = stream == State().capturing ? 1 : 0;
  return stream == 0 && State().capturing != UINTPTR_MAX &&
                 State().capturing != 0
             ? kCaptureImplicit
             : 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  static thread_local int current = 0;
  std::swap(*mode, current);
  return 0;
}

}  // extern "C"
