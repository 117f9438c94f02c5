// SPDX-License-Identifier: Apache-2.0
// The functions of the CUDA driver library that the statistics kernel needs,
// found at run time: the build needs neither a CUDA toolkit nor its headers,
// and a machine without the library has no CUDA tensors.
//
// Immutable after Load, which may be called by any thread. The library stays
// loaded for the life of the process, as PyTorch keeps it.
#ifndef RANKPROBE_AGENT_RUNTIME_DEVICE_CUDA_DRIVER_H_
#define RANKPROBE_AGENT_RUNTIME_DEVICE_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rankprobe {

// The types of cuda.h, by their representation.
using CuResult = int;
using CuDevice = int;
using CuContext = struct CuContextObject*;
using CuModule = struct CuModuleObject*;
using CuFunction = struct CuFunctionObject*;
using CuStream = struct CuStreamObject*;
using CuEvent = struct CuEventObject*;
using CuDevicePointer = uint64_t;
// CU_EVENT_DISABLE_TIMING: an event that is only waited for.
inline constexpr unsigned kCuEventDisableTiming = 2;

struct CudaDriver {
  // Returns NOT_FOUND if the library does not exist or lacks a function.
  static absl::StatusOr<CudaDriver> Load(const std::string& library);

  // Returns OK, or an error such as "cuLaunchKernel failed: CUDA_ERROR_..".
  absl::Status Check(CuResult result, const char* function) const;

  CuResult (*Init)(unsigned flags);
  CuResult (*GetErrorName)(CuResult error, const char** name);
  CuResult (*DeviceGet)(CuDevice* device, int ordinal);
  CuResult (*DevicePrimaryCtxGetState)(CuDevice device, unsigned* flags,
                                       int* active);
  CuResult (*DevicePrimaryCtxRetain)(CuContext* context, CuDevice device);
  CuResult (*DevicePrimaryCtxRelease)(CuDevice device);
  CuResult (*CtxPushCurrent)(CuContext context);
  CuResult (*CtxPopCurrent)(CuContext* context);
  CuResult (*ModuleLoadData)(CuModule* module, const void* image);
  CuResult (*ModuleUnload)(CuModule module);
  CuResult (*ModuleGetFunction)(CuFunction* function, CuModule module,
                                const char* name);
  CuResult (*LaunchKernel)(CuFunction function, unsigned grid_x,
                           unsigned grid_y, unsigned grid_z, unsigned block_x,
                           unsigned block_y, unsigned block_z,
                           unsigned shared_bytes, CuStream stream,
                           void** arguments, void** extra);
  CuResult (*MemAlloc)(CuDevicePointer* address, size_t bytes);
  CuResult (*MemFree)(CuDevicePointer address);
  CuResult (*MemHostAlloc)(void** address, size_t bytes, unsigned flags);
  CuResult (*MemFreeHost)(void* address);
  CuResult (*MemcpyDtoHAsync)(void* to, CuDevicePointer from, size_t bytes,
                              CuStream stream);
  CuResult (*EventCreate)(CuEvent* event, unsigned flags);
  CuResult (*EventDestroy)(CuEvent event);
  CuResult (*EventRecord)(CuEvent event, CuStream stream);
  CuResult (*EventSynchronize)(CuEvent event);
  CuResult (*StreamWaitEvent)(CuStream stream, CuEvent event, unsigned flags);
  CuResult (*StreamIsCapturing)(CuStream stream, int* status);
  CuResult (*ThreadExchangeStreamCaptureMode)(int* mode);
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_DEVICE_CUDA_DRIVER_H_
