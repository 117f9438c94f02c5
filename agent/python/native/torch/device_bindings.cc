// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/device_bindings.h"

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "agent/runtime/device/device_statistics.h"
#include "agent/runtime/device/statistics_kernel_ptx.h"
#include "common/tensor/dtype.h"
#include "pybind11/stl.h"

namespace py = pybind11;

namespace rankprobe {

void RegisterDeviceStatistics(py::module_& m) {
  py::class_<DeviceStatistics> statistics(
      m, "DeviceStatistics",
      "Statistics of tensors on CUDA devices, reduced by rankprobe's kernel.");
  py::class_<DeviceStatistics::Delivery>(
      m, "DeviceDelivery", "Statistics that are being copied from devices.")
      .def_property_readonly("first", &DeviceStatistics::Delivery::first)
      .def_property_readonly("end", &DeviceStatistics::Delivery::end)
      .def(
          "wait",
          [](DeviceStatistics::Delivery& delivery, uintptr_t address) {
            absl::Status status;
            {
              const py::gil_scoped_release release;
              status = delivery.Wait(reinterpret_cast<ReducedNumbers*>(
                  address));  // NOLINT: as data_ptr() gives it
            }
            if (!status.ok())
              throw std::runtime_error(std::string(status.message()));
          },
          py::arg("address"));
  statistics
      .def(py::init([](const std::string& library) {
             return std::make_unique<DeviceStatistics>(library,
                                                       kStatisticsKernelPtx);
           }),
           py::arg("library"))
      .def(
          "reduce",
          [](DeviceStatistics& self, const std::string& dtype,
             uintptr_t address, const std::vector<int64_t>& shape,
             const std::vector<int64_t>& strides, int device,
             uintptr_t stream) -> std::optional<uint64_t> {
            DeviceStatistics::Tensor tensor;
            tensor.view = {reinterpret_cast<const void*>(address),  // NOLINT
                           ParseDtype(dtype), shape, strides};
            tensor.device = device;
            tensor.stream = stream;
            const absl::StatusOr<uint64_t> slot = self.Reduce(tensor);
            return slot.ok() ? std::optional(*slot) : std::nullopt;
          },
          py::arg("dtype"), py::arg("address"), py::arg("shape"),
          py::arg("strides"), py::arg("device"), py::arg("stream"))
      .def_property_readonly("full", &DeviceStatistics::full)
      .def("take_slot", &DeviceStatistics::TakeSlot)
      .def_property_readonly("first_slot", &DeviceStatistics::first_slot)
      .def_property_readonly("next_slot", &DeviceStatistics::next_slot)
      .def("take_error", &DeviceStatistics::TakeError)
      .def("devices", &DeviceStatistics::Devices)
      .def(
          "take_pending",
          [](DeviceStatistics& self,
             const std::unordered_map<int, uintptr_t>& streams) {
            return self.TakePending({streams.begin(), streams.end()});
          },
          py::arg("streams"), py::keep_alive<0, 1>());
}

}  // namespace rankprobe
