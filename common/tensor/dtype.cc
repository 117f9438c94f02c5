// SPDX-License-Identifier: Apache-2.0
#include "common/tensor/dtype.h"

#include "absl/strings/strip.h"

namespace rankprobe {
namespace {

struct Row {
  v1::DType dtype;
  size_t size;
  const char* name;
  const char* storage;
  const char* mindspore;
};

constexpr Row kRows[] = {
    {v1::DTYPE_FLOAT32, 4, "torch.float32", "FloatStorage", "Float32"},
    {v1::DTYPE_FLOAT64, 8, "torch.float64", "DoubleStorage", "Float64"},
    {v1::DTYPE_FLOAT16, 2, "torch.float16", "HalfStorage", "Float16"},
    {v1::DTYPE_BFLOAT16, 2, "torch.bfloat16", "BFloat16Storage", "BFloat16"},
    {v1::DTYPE_UINT8, 1, "torch.uint8", "ByteStorage", "UInt8"},
    {v1::DTYPE_INT8, 1, "torch.int8", "CharStorage", "Int8"},
    {v1::DTYPE_INT16, 2, "torch.int16", "ShortStorage", "Int16"},
    {v1::DTYPE_INT32, 4, "torch.int32", "IntStorage", "Int32"},
    {v1::DTYPE_INT64, 8, "torch.int64", "LongStorage", "Int64"},
    {v1::DTYPE_BOOL, 1, "torch.bool", "BoolStorage", "Bool"},
    {v1::DTYPE_COMPLEX64, 8, "torch.complex64", "ComplexFloatStorage",
     "Complex64"},
    {v1::DTYPE_COMPLEX128, 16, "torch.complex128", "ComplexDoubleStorage",
     "Complex128"},
    {v1::DTYPE_FLOAT8_E5M2, 1, "torch.float8_e5m2", "", "Float8E5M2"},
    {v1::DTYPE_FLOAT8_E4M3FN, 1, "torch.float8_e4m3fn", "", "Float8E4M3FN"},
    {v1::DTYPE_UINT16, 2, "torch.uint16", "", "UInt16"},
    {v1::DTYPE_UINT32, 4, "torch.uint32", "", "UInt32"},
    {v1::DTYPE_UINT64, 8, "torch.uint64", "", "UInt64"},
    {v1::DTYPE_COMPLEX32, 4, "torch.complex32", "", ""},
    {v1::DTYPE_FLOAT8_E8M0FNU, 1, "torch.float8_e8m0fnu", "", ""},
    {v1::DTYPE_FLOAT8_E5M2FNUZ, 1, "torch.float8_e5m2fnuz", "", ""},
    {v1::DTYPE_FLOAT8_E4M3FNUZ, 1, "torch.float8_e4m3fnuz", "", ""},
};

const Row* Find(v1::DType dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype) return &row;
  }
  return nullptr;
}

}  // namespace

Family FamilyOf(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_FLOAT32:
    case v1::DTYPE_FLOAT64:
    case v1::DTYPE_FLOAT16:
    case v1::DTYPE_BFLOAT16:
    case v1::DTYPE_FLOAT8_E5M2:
    case v1::DTYPE_FLOAT8_E4M3FN:
    case v1::DTYPE_FLOAT8_E5M2FNUZ:
    case v1::DTYPE_FLOAT8_E4M3FNUZ:
    case v1::DTYPE_FLOAT8_E8M0FNU:
      return Family::kFloat;
    case v1::DTYPE_UINT8:
    case v1::DTYPE_INT8:
    case v1::DTYPE_INT16:
    case v1::DTYPE_INT32:
    case v1::DTYPE_INT64:
    case v1::DTYPE_UINT16:
    case v1::DTYPE_UINT32:
    case v1::DTYPE_UINT64:
      return Family::kInt;
    case v1::DTYPE_BOOL:
      return Family::kBool;
    case v1::DTYPE_COMPLEX64:
    case v1::DTYPE_COMPLEX128:
      return Family::kComplex;
    default:
      return Family::kNone;
  }
}

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

absl::string_view MindsporeDtypeName(v1::DType dtype) {
  const Row* row = Find(dtype);
  return row == nullptr ? "" : row->mindspore;
}

v1::DType ParseDtype(absl::string_view name) {
  name = absl::StripPrefix(name, "torch.");
  if (name.empty()) return v1::DTYPE_UNSPECIFIED;
  for (const Row& row : kRows) {
    if (absl::StripPrefix(row.name, "torch.") == name || row.mindspore == name)
      return row.dtype;
  }
  return v1::DTYPE_UNSPECIFIED;
}

bool AreOneDtype(absl::string_view a, absl::string_view b) {
  if (a == b) return true;
  const v1::DType dtype = ParseDtype(a);
  if (dtype == v1::DTYPE_UNSPECIFIED || dtype != ParseDtype(b)) return false;
  // NumPy's "float32" is not the type of a tensor.
  const absl::string_view word = MindsporeDtypeName(dtype);
  return a == word || b == word;
}

}  // namespace rankprobe
