// SPDX-License-Identifier: Apache-2.0
// Conversion of values that were read to parts of a record.
#include "agent/python/native/torch/py_value.h"
#include "common/tensor/dtype.h"

namespace rankprobe {
namespace {

void FillTensor(CallBuilder& builder, const PyTensorView& tensor,
                v1::TensorSummary* out) {
  if (tensor.no_data) {
    out->set_dtype(tensor.dtype);
    out->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
    out->set_requires_grad(tensor.requires_grad);
    builder.NoData(out);
  } else {
    builder.Tensor(tensor.Info(), out);
  }
  if (tensor.text) {
    out->clear_dtype();
    out->clear_shape();
    out->clear_extra();
    if (out->has_stats()) out->mutable_stats()->Clear();
  }
  if (tensor.summary != nullptr) out->MergeFrom(*tensor.summary);
}

}  // namespace

TensorInfo PyTensorView::Info() const {
  TensorInfo info;
  info.view.data = reinterpret_cast<const void*>(address);
  info.view.dtype = dtype;
  info.view.sizes = shape;
  info.view.strides = strides;
  info.requires_grad = requires_grad;
  info.is_parameter = is_parameter;
  info.identity = identity;
  info.arrival = arrival;
  info.slot = slot;
  return info;
}

uint64_t BytesOf(const PyValue& value) {
  if (value.tensor == nullptr) return BytesOf(value.items);
  if (value.tensor->address == 0) return 0;
  uint64_t bytes = ElementSize(value.tensor->dtype);
  for (const int64_t size : value.tensor->shape)
    bytes *= static_cast<uint64_t>(size);
  return bytes;
}

uint64_t BytesOf(const std::vector<PyValue>& values) {
  uint64_t bytes = 0;
  for (const PyValue& value : values) bytes += BytesOf(value);
  return bytes;
}

void ForgetNumbers(PyValue* value) {
  for (PyValue& item : value->items) ForgetNumbers(&item);
  if (value->tensor == nullptr) return;
  value->tensor->no_data = true;
  if (value->tensor->summary != nullptr) value->tensor->summary->clear_stats();
}

void Fill(CallBuilder& builder, const PyValue& value, v1::Value* out) {
  switch (value.kind) {
    case PyValue::Kind::kNull:
      return;
    case PyValue::Kind::kBool:
      return CallBuilder::Bool(value.integer != 0, out);
    case PyValue::Kind::kInt:
      return CallBuilder::Int(value.integer, out);
    case PyValue::Kind::kFloat:
      return CallBuilder::Float(value.real, out);
    case PyValue::Kind::kTensor:
      FillTensor(builder, *value.tensor, out->mutable_tensor());
      return;
    case PyValue::Kind::kLeaf:
      *out = *value.leaf;
      return;
    case PyValue::Kind::kP2p:
      *out = *value.leaf;
      FillTensor(builder, *value.tensor, out->mutable_p2p()->mutable_tensor());
      return;
    case PyValue::Kind::kList:
      FillList(builder, value.items, out->mutable_list());
      return;
    case PyValue::Kind::kMap:
      FillMap(builder, value, out->mutable_map());
      return;
  }
}

void FillList(CallBuilder& builder, const std::vector<PyValue>& values,
              v1::ValueList* out) {
  for (const PyValue& value : values) Fill(builder, value, out->add_items());
}

void FillMap(CallBuilder& builder, const PyValue& values, v1::ValueMap* out) {
  for (size_t i = 0; i < values.items.size(); ++i) {
    v1::NamedValue* item = out->add_items();
    item->set_name(values.names[i]);
    Fill(builder, values.items[i], item->mutable_value());
  }
}

}  // namespace rankprobe
