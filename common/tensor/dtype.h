// SPDX-License-Identifier: Apache-2.0
// Facts about element types. Pure functions.
#ifndef RANKPROBE_COMMON_TENSOR_DTYPE_H_
#define RANKPROBE_COMMON_TENSOR_DTYPE_H_

#include <cstddef>

#include "absl/strings/string_view.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

enum class Family { kFloat, kInt, kBool, kComplex, kNone };

// kNone: the dtype has no statistics.
Family FamilyOf(v1::DType dtype);

// Bytes per element; 0 for DTYPE_UNSPECIFIED.
size_t ElementSize(v1::DType dtype);

// "torch.float32"; empty for DTYPE_UNSPECIFIED.
absl::string_view TorchDtypeName(v1::DType dtype);

// "FloatStorage", the legacy storage class of a .pt file; empty if the type has
// none (the file then uses an untyped storage of bytes).
absl::string_view TorchStorageClass(v1::DType dtype);

// "Float32", as MindSpore prints it; empty for a type that MindSpore lacks.
absl::string_view MindsporeDtypeName(v1::DType dtype);

// Inverse of TorchDtypeName, also without the "torch." prefix, and of
// MindsporeDtypeName.
v1::DType ParseDtype(absl::string_view name);

// Whether two names mean the same type, such as "Float32" and "torch.float32".
bool AreOneDtype(absl::string_view a, absl::string_view b);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TENSOR_DTYPE_H_
