// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/dlpack_view.h"

#include "agent/python/native/torch/program_error.h"

namespace rankprobe {
namespace {

constexpr char kCapsule[] = "dlpack_exchange_api";
constexpr uint32_t kMajor = 1;  // of DLPack's binary interface
constexpr int32_t kCpu = 1, kCuda = 2;

// DLPack's codes of element types.
enum : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6 };

// DLPackExchangeAPI, of which only the fourth function is used.
struct ExchangeTable {
  uint32_t major, minor;
  ExchangeTable* previous;  // of an older major version
  void (*allocate)();
  void (*managed_from_object)();
  void (*managed_to_object)();
  void* tensor_from_object;
  void (*current_stream)();
};

v1::DType DtypeOf(uint8_t code, uint8_t bits) {
  switch (code << 8 | bits) {
    case kFloat << 8 | 16:
      return v1::DTYPE_FLOAT16;
    case kFloat << 8 | 32:
      return v1::DTYPE_FLOAT32;
    case kFloat << 8 | 64:
      return v1::DTYPE_FLOAT64;
    case kBfloat << 8 | 16:
      return v1::DTYPE_BFLOAT16;
    case kBool << 8 | 8:
      return v1::DTYPE_BOOL;
    case kUInt << 8 | 8:
      return v1::DTYPE_UINT8;
    case kInt << 8 | 8:
      return v1::DTYPE_INT8;
    case kInt << 8 | 16:
      return v1::DTYPE_INT16;
    case kInt << 8 | 32:
      return v1::DTYPE_INT32;
    case kInt << 8 | 64:
      return v1::DTYPE_INT64;
    default:
      return v1::DTYPE_UNSPECIFIED;
  }
}

}  // namespace

// DLPack's DLTensor.
struct DlpackView::Tensor {
  void* data;
  int32_t device_type, device_id;
  int32_t dimensions;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

DlpackView::DlpackView(PyObject* capsule) {
  if (capsule == nullptr || !PyCapsule_IsValid(capsule, kCapsule)) return;
  auto* table =
      static_cast<ExchangeTable*>(PyCapsule_GetPointer(capsule, kCapsule));
  while (table != nullptr && table->major > kMajor) table = table->previous;
  if (table == nullptr || table->major != kMajor) return;
  from_object_ =
      reinterpret_cast<int (*)(void*, Tensor*)>(table->tensor_from_object);
}

bool DlpackView::Read(PyObject* tensor, v1::DType* dtype, uintptr_t* address,
                      absl::InlinedVector<int64_t, 6>* shape,
                      absl::InlinedVector<int64_t, 6>* strides,
                      int* cuda_device) const {
  if (from_object_ == nullptr) return false;
  Tensor view = {};
  if (from_object_(tensor, &view) != 0) {
    ClearOwnError();
    return false;
  }
  *dtype = DtypeOf(view.code, view.bits);
  if (*dtype == v1::DTYPE_UNSPECIFIED || view.lanes != 1 ||
      (view.device_type != kCpu && view.device_type != kCuda) ||
      view.dimensions < 0 ||
      (view.dimensions > 0 &&
       (view.shape == nullptr || view.strides == nullptr))) {
    return false;
  }
  *cuda_device = view.device_type == kCuda ? view.device_id : -1;
  *address = reinterpret_cast<uintptr_t>(view.data) + view.byte_offset;
  shape->assign(view.shape, view.shape + view.dimensions);
  strides->assign(view.strides, view.strides + view.dimensions);
  return true;
}

}  // namespace rankprobe
