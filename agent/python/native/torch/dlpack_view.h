// SPDX-License-Identifier: Apache-2.0
// Address, dtype, shape and strides of a tensor by one call of C, where
// PyTorch offers DLPack's exchange table (DLPack 1.3; PyTorch 2.10 and later),
// instead of six calls of Python methods.
//
// Immutable; needs the GIL. Failure: false, without a Python error, for tensors
// that are not dense memory of the CPU or of a CUDA device, and for dtypes that
// need more than these fields.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_DLPACK_VIEW_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_DLPACK_VIEW_H_

#include <Python.h>

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

class DlpackView {
 public:
  // Without a table: Read always returns false.
  DlpackView() = default;
  // `capsule` is Tensor.__dlpack_c_exchange_api__, None, or an unknown version.
  explicit DlpackView(PyObject* capsule);

  // `cuda_device`: the number of the device; -1 for memory of the CPU.
  bool Read(PyObject* tensor, v1::DType* dtype, uintptr_t* address,
            absl::InlinedVector<int64_t, 6>* shape,
            absl::InlinedVector<int64_t, 6>* strides, int* cuda_device) const;

 private:
  struct Tensor;
  int (*from_object_)(void* object, Tensor* out) = nullptr;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_DLPACK_VIEW_H_
