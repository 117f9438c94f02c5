// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/device/cuda_driver.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace rankprobe {

absl::StatusOr<CudaDriver> CudaDriver::Load(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return absl::NotFoundError(absl::StrCat("cannot load ", library));
  CudaDriver driver{};
  const char* missing = nullptr;
  // If a function has changed, cuda.h gives the new version a suffix.
  const auto find = [&](const char* name, auto* function) {
    void* const found = dlsym(handle, name);
    if (found == nullptr && missing == nullptr) missing = name;
    *function = reinterpret_cast<std::decay_t<decltype(*function)>>(found);
  };
  find("cuInit", &driver.Init);
  find("cuGetErrorName", &driver.GetErrorName);
  find("cuDeviceGet", &driver.DeviceGet);
  find("cuDevicePrimaryCtxGetState", &driver.DevicePrimaryCtxGetState);
  find("cuDevicePrimaryCtxRetain", &driver.DevicePrimaryCtxRetain);
  find("cuDevicePrimaryCtxRelease_v2", &driver.DevicePrimaryCtxRelease);
  find("cuCtxPushCurrent_v2", &driver.CtxPushCurrent);
  find("cuCtxPopCurrent_v2", &driver.CtxPopCurrent);
  find("cuModuleLoadData", &driver.ModuleLoadData);
  find("cuModuleUnload", &driver.ModuleUnload);
  find("cuModuleGetFunction", &driver.ModuleGetFunction);
  find("cuLaunchKernel", &driver.LaunchKernel);
  find("cuMemAlloc_v2", &driver.MemAlloc);
  find("cuMemFree_v2", &driver.MemFree);
  find("cuMemHostAlloc", &driver.MemHostAlloc);
  find("cuMemFreeHost", &driver.MemFreeHost);
  find("cuMemcpyDtoHAsync_v2", &driver.MemcpyDtoHAsync);
  find("cuEventCreate", &driver.EventCreate);
  find("cuEventDestroy_v2", &driver.EventDestroy);
  find("cuEventRecord", &driver.EventRecord);
  find("cuEventSynchronize", &driver.EventSynchronize);
  find("cuStreamWaitEvent", &driver.StreamWaitEvent);
  find("cuStreamIsCapturing", &driver.StreamIsCapturing);
  find("cuThreadExchangeStreamCaptureMode",
       &driver.ThreadExchangeStreamCaptureMode);
  if (missing != nullptr)
    return absl::NotFoundError(absl::StrCat(library, " has no ", missing));
  return driver;
}

absl::Status CudaDriver::Check(CuResult result, const char* function) const {
  if (result == 0) return absl::OkStatus();
  const char* name = nullptr;
  if (GetErrorName(result, &name) != 0 || name == nullptr) name = "?";
  return absl::InternalError(
      absl::StrCat(function, " failed: ", name, " (", result, ")"));
}

}  // namespace rankprobe
