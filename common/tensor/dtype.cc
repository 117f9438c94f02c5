// SPDX-License-Identifier: Apache-2.0
#include "common/tensor/dtype.h"

#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace rankprobe {
namespace {

struct Row {
  v1::DType dtype;
  size_t size;
  const char* name;
  const char* storage;
};

constexpr Row kRows[] = {
    {v1::DTYPE_FLOAT32, 4, "torch.float32", "FloatStorage"},
    {v1::DTYPE_FLOAT64, 8, "torch.float64", "DoubleStorage"},
    {v1::DTYPE_FLOAT16, 2, "torch.float16", "HalfStorage"},
    {v1::DTYPE_BFLOAT16, 2, "torch.bfloat16", "BFloat16Storage"},
    {v1::DTYPE_UINT8, 1, "torch.uint8", "ByteStorage"},
    {v1::DTYPE_INT8, 1, "torch.int8", "CharStorage"},
    {v1::DTYPE_INT16, 2, "torch.int16", "ShortStorage"},
    {v1::DTYPE_INT32, 4, "torch.int32", "IntStorage"},
    {v1::DTYPE_INT64, 8, "torch.int64", "LongStorage"},
    {v1::DTYPE_BOOL, 1, "torch.bool", "BoolStorage"},
    {v1::DTYPE_COMPLEX64, 8, "torch.complex64", "ComplexFloatStorage"},
    {v1::DTYPE_COMPLEX128, 16, "torch.complex128", "ComplexDoubleStorage"},
    {v1::DTYPE_FLOAT8_E5M2, 1, "torch.float8_e5m2", ""},
    {v1::DTYPE_FLOAT8_E4M3FN, 1, "torch.float8_e4m3fn", ""},
    {v1::DTYPE_UINT16, 2, "torch.uint16", ""},
    {v1::DTYPE_UINT32, 4, "torch.uint32", ""},
    {v1::DTYPE_UINT64, 8, "torch.uint64", ""},
    {v1::DTYPE_COMPLEX32, 4, "torch.complex32", ""},
    {v1::DTYPE_FLOAT8_E8M0FNU, 1, "torch.float8_e8m0fnu", ""},
    {v1::DTYPE_FLOAT8_E5M2FNUZ, 1, "torch.float8_e5m2fnuz", ""},
    {v1::DTYPE_FLOAT8_E4M3FNUZ, 1, "torch.float8_e4m3fnuz", ""},
};

const Row* Find(v1::DType dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype) return &row;
  }
  return nullptr;
}

}  // namespace

size_t ElementSize(v1::DType dtype) {
  const Row* row = Find(dtype);
  return row == nullptr ? 0 : row->size;
}

absl::string_view TorchDtypeName(v1::DType dtype) {
  const Row* row = Find(dtype);
  return row == nullptr ? "" : row->name;
}

absl::string_view TorchStorageClass(v1::DType dtype) {
  const Row* row = Find(dtype);
  return row == nullptr ? "" : row->storage;
}

v1::DType ParseDtype(absl::string_view name) {
  name = absl::StripPrefix(name, "torch.");
  for (const Row& row : kRows) {
    if (absl::StripPrefix(row.name, "torch.") == name) return row.dtype;
  }
  return v1::DTYPE_UNSPECIFIED;
}

}  // namespace rankprobe
