// SPDX-License-Identifier: Apache-2.0
#include "agent/libtorch/tensor_adapter.h"

#include <algorithm>

#include "common/records/cut_value.h"

namespace rankprobe {
namespace {

v1::DType ToDtype(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return v1::DTYPE_FLOAT32;
    case c10::ScalarType::Double:
      return v1::DTYPE_FLOAT64;
    case c10::ScalarType::Half:
      return v1::DTYPE_FLOAT16;
    case c10::ScalarType::BFloat16:
      return v1::DTYPE_BFLOAT16;
    case c10::ScalarType::Byte:
      return v1::DTYPE_UINT8;
    case c10::ScalarType::Char:
      return v1::DTYPE_INT8;
    case c10::ScalarType::Short:
      return v1::DTYPE_INT16;
    case c10::ScalarType::Int:
      return v1::DTYPE_INT32;
    case c10::ScalarType::Long:
      return v1::DTYPE_INT64;
    case c10::ScalarType::Bool:
      return v1::DTYPE_BOOL;
    case c10::ScalarType::ComplexHalf:
      return v1::DTYPE_COMPLEX32;
    case c10::ScalarType::ComplexFloat:
      return v1::DTYPE_COMPLEX64;
    case c10::ScalarType::ComplexDouble:
      return v1::DTYPE_COMPLEX128;
    default:
      return v1::DTYPE_UNSPECIFIED;
  }
}

}  // namespace

HostTensor::HostTensor(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != c10::kStrided ||
      tensor.is_meta() || tensor.is_quantized())
    return;
  info_.view.dtype = ToDtype(tensor.scalar_type());
  if (info_.view.dtype == v1::DTYPE_UNSPECIFIED) return;
  readable_ = tensor;
  if (!tensor.is_cpu() || tensor.is_conj() || tensor.is_neg()) {
    const SuppressObserver suppress;
    const at::NoGradGuard no_grad;
    readable_ = tensor.detach().resolve_conj().resolve_neg().cpu();
    copied_ = true;
  }
  info_.view.data = readable_.data_ptr();
  info_.view.sizes =
      absl::MakeConstSpan(readable_.sizes().data(), readable_.sizes().size());
  info_.view.strides = absl::MakeConstSpan(readable_.strides().data(),
                                           readable_.strides().size());
  info_.requires_grad = tensor.requires_grad();
}

void RecordSavedGradient(Recorder* recorder, const SavedValue& saved,
                         const at::Tensor& gradient) {
  const SuppressObserver suppress;
  try {
    const HostTensor host(gradient);
    if (host.valid())
      recorder->saved().SaveGradient(saved, "",
                                     [&](CallBuilder& builder, v1::Value* out) {
                                       builder.Tensor(host.info(), out);
                                     });
  } catch (const std::exception& e) {
    recorder->ReportFault(saved.gradient_entry + ": " + e.what());
  }
}

int& SuppressionDepth() {
  thread_local int depth = 0;
  return depth;
}

void TensorAdapter::Add(CallBuilder& builder, const at::Tensor& tensor,
                        v1::Value* out) {
  if (!tensor.defined()) return;
  if (tensor.dim() > kMaxDimensions) {
    SetCut("torch.Tensor", static_cast<uint64_t>(tensor.dim()), 0, "length",
           out);
    return;
  }
  const HostTensor host(tensor);
  if (!host.valid()) {
    const v1::DType dtype = ToDtype(tensor.scalar_type());
    v1::TensorSummary* summary = out->mutable_tensor();
    summary->set_dtype(dtype);
    if (dtype == v1::DTYPE_UNSPECIFIED) {
      summary->set_dtype_name(std::string("torch.") +
                              c10::toString(tensor.scalar_type()));
    }
    for (const int64_t size : tensor.sizes()) summary->add_shape(size);
    summary->mutable_stats();
    summary->set_requires_grad(tensor.requires_grad());
    return;
  }
  TensorInfo info = host.info();
  if (!host.copied() && !tensor.is_inference()) {
    info.identity.storage = tensor.storage().unsafeGetStorageImpl();
    info.identity.version = static_cast<uint64_t>(tensor._version());
    const std::lock_guard<std::mutex> lock(mutex_);
    held_.push_back(tensor.storage().getWeakStorageImpl());
  }
  builder.Tensor(info, out);
}

void TensorAdapter::Add(CallBuilder& builder, const c10::IValue& value,
                        v1::Value* out) {
  Room room;
  AddValue(builder, value, &room, out);
}

template <typename Items>
void TensorAdapter::AddItems(CallBuilder& builder, const Items& items,
                             Room* room, v1::Value* out) {
  const size_t count = items.size();
  if (room->messages < kListMessages)
    return SetCut("list", count, 0, "depth", out);
  room->messages -= kListMessages;
  v1::ValueList* const list = out->mutable_list();
  size_t kept = 0;
  for (const c10::IValue item : items) {
    if (room->values == 0 || room->tensors == 0) {
      SetCut("list", count, kept, room->values == 0 ? "length" : "tensors",
             list->add_items());
      break;
    }
    AddValue(builder, item, room, list->add_items());
    ++kept;
  }
  room->messages += kListMessages;
}

void TensorAdapter::AddValue(CallBuilder& builder, const c10::IValue& value,
                             Room* room, v1::Value* out) {
  if (value.isNone()) return;
  if (room->values == 0) return SetCut("", 0, 0, "length", out);
  --room->values;
  if (value.isTensor()) {
    room->tensors -= std::min<uint64_t>(room->tensors, 1);
    Add(builder, value.toTensor(), out);
  } else if (value.isInt()) {
    CallBuilder::Int(value.toInt(), out);
  } else if (value.isDouble()) {
    CallBuilder::Float(value.toDouble(), out);
  } else if (value.isBool()) {
    CallBuilder::Bool(value.toBool(), out);
  } else if (value.isString()) {
    CallBuilder::String(value.toStringRef(), out);
  } else if (value.isDevice()) {
    out->mutable_object()->set_kind(v1::ObjectLeaf::KIND_DEVICE);
    out->mutable_object()->set_text(value.toDevice().str());
  } else if (value.isTuple()) {
    AddItems(builder, value.toTupleRef().elements(), room, out);
  } else if (value.isList()) {
    AddItems(builder, value.toListRef(), room, out);
  } else if (value.isIntList() || value.isDoubleList() || value.isBoolList() ||
             value.isTensorList()) {
    AddItems(builder, value.toList(), room, out);
  }
}

void TensorAdapter::EndStep() {
  const std::lock_guard<std::mutex> lock(mutex_);
  held_.clear();
}

}  // namespace rankprobe
