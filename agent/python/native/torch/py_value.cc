// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/py_value.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/python/native/torch/program_error.h"
#include "agent/python/native/torch/py_read.h"
#include "common/records/cut_value.h"
#include "google/protobuf/wire_format_lite.h"

namespace rankprobe {
namespace {

// Minimum number of bytes of a record for a value, for a tensor.
constexpr uint64_t kValueBytes = 4;
constexpr uint64_t kTensorBytes = 40;

PyValue Leaf(v1::Value leaf) {
  PyValue out;
  out.kind = PyValue::Kind::kLeaf;
  out.leaf = std::make_unique<v1::Value>(std::move(leaf));
  return out;
}

PyValue Object(v1::ObjectLeaf::Kind kind, std::string text = "") {
  v1::Value value;
  value.mutable_object()->set_kind(kind);
  if (text.size() > kMaxNameBytes)
    text = std::string(Utf8Prefix(text, kMaxNameBytes));
  value.mutable_object()->set_text(std::move(text));
  return Leaf(std::move(value));
}

PyValue Cut(absl::string_view type, uint64_t size, uint64_t kept,
            absl::string_view limit) {
  v1::Value value;
  SetCut(Utf8Prefix(type, kMaxTypeBytes), size, kept, limit, &value);
  return Leaf(std::move(value));
}

PyValue Cut(PyObject* object, uint64_t size, absl::string_view limit) {
  return Cut(PyList_Check(object) || PyTuple_Check(object) ? "list"
             : PyDict_Check(object)                        ? "dict"
                                    : Py_TYPE(object)->tp_name,
             size, 0, limit);
}

// Returns null if there is room for another value.
const char* Exhausted(const ReadBudget& budget) {
  if (budget.values == 0) return "length";
  if (budget.tensors == 0) return "tensors";
  return budget.bytes == 0 ? "bytes" : nullptr;
}

void Charge(uint64_t bytes, ReadBudget* budget) {
  budget->bytes -= std::min(budget->bytes, bytes);
}

// Scope of the contents of a container or object; `cut` is set if they must not
// be read.
class Inside {
 public:
  Inside(PyObject* object, uint64_t size, int messages, ReadBudget* budget)
      : messages_(messages), budget_(budget) {
    if (std::find(budget->inside.begin(), budget->inside.end(), object) !=
        budget->inside.end()) {
      cut = Cut(object, 0, "cycle");
    } else if (budget->messages < messages) {
      cut = Cut(object, size, "depth");
    }
    budget_->messages -= messages_;
    budget_->inside.push_back(object);
  }
  ~Inside() {
    budget_->messages += messages_;
    budget_->inside.pop_back();
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

  std::optional<PyValue> cut;

 private:
  const int messages_;
  ReadBudget* const budget_;
};

PyValue WithinDimensions(PyValue tensor) {
  const size_t dimensions = tensor.tensor->shape.size();
  if (dimensions <= kMaxDimensions) return tensor;
  return Cut("torch.Tensor", dimensions, 0, "length");
}

// Converts a key of a dict to a name.
std::string KeyText(PyObject* key, Py_ssize_t position) {
  std::string text = PyText(key);
  if (text.size() <= kMaxNameBytes) return text;
  // Keeps long keys with the same beginning distinct.
  return absl::StrCat(Utf8Prefix(text, kMaxNameBytes - 96), "...(", text.size(),
                      " bytes, item ", position, ")");
}

// An integer beyond 64 bits.
void BigInt(PyObject* object, const std::string& type, v1::Value* out) {
  // Called on the type, because a subclass may override the method.
  const PyRef bits = PyRef::Steal(PyObject_CallMethod(
      reinterpret_cast<PyObject*>(&PyLong_Type), "bit_length", "O", object));
  const long long count = bits ? PyLong_AsLongLong(bits.get()) : -1;
  ClearOwnError();
  // Accurate to one digit; computing the digits themselves takes quadratic
  // time.
  const auto digits = static_cast<uint64_t>(
      static_cast<double>(std::max(count, 0LL)) * 0.30102999566398120 + 1);
  if (digits <= kMaxIntegerDigits) {
    std::string text = PyText(object);
    // Python may be configured to print fewer digits.
    if (!text.empty()) {
      out->mutable_scalar()->set_type(type);
      out->mutable_scalar()->set_big_int(std::move(text));
      return;
    }
  }
  SetCut(type, digits, 0, "length", out);
}

// A number or a text; `type_name` is the JSON "type".
PyValue Scalar(PyObject* object, absl::string_view type_name) {
  const std::string type(Utf8Prefix(type_name, kMaxTypeBytes));
  v1::Value value;
  v1::ScalarValue* scalar = value.mutable_scalar();
  scalar->set_type(type);
  if (PyBool_Check(object)) {
    scalar->set_b(object == Py_True);
  } else if (PyLong_Check(object)) {
    int overflow = 0;
    const long long i = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow == 0) {
      scalar->set_i(i);
    } else {
      BigInt(object, type, &value);
    }
  } else if (PyFloat_Check(object)) {
    scalar->set_f(PyFloat_AS_DOUBLE(object));
  } else {
    std::string text = PyText(object);
    if (text.size() > kMaxTextBytes) {
      SetCutText(type, text, kMaxTextBytes, "length", &value);
    } else {
      scalar->set_s(std::move(text));
    }
  }
  return Leaf(std::move(value));
}

// A number of exactly one of Python's types that fits into 64 bits; kNull for
// everything else.
PyValue Number(PyObject* object) {
  PyValue out;
  if (PyBool_Check(object)) {
    out.kind = PyValue::Kind::kBool;
    out.integer = object == Py_True ? 1 : 0;
  } else if (PyFloat_CheckExact(object)) {
    out.kind = PyValue::Kind::kFloat;
    out.real = PyFloat_AS_DOUBLE(object);
  } else if (PyLong_CheckExact(object)) {
    int overflow = 0;
    out.integer = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow == 0) out.kind = PyValue::Kind::kInt;
  }
  return out;
}

// Bytes of the v1::Value that Fill makes of a number.
uint64_t NumberBytes(const PyValue& number) {
  using google::protobuf::internal::WireFormatLite;
  constexpr uint64_t kTags = 2 + 2 + 1;
  switch (number.kind) {
    case PyValue::Kind::kBool:
      return kTags + sizeof("bool") - 1 + 1;
    case PyValue::Kind::kFloat:
      return kTags + sizeof("float") - 1 + sizeof(double);
    default:
      return kTags + sizeof("int") - 1 +
             WireFormatLite::SInt64Size(number.integer);
  }
}

PyValue Slice(PyObject* slice) {
  v1::Value value;
  v1::ObjectLeaf* leaf = value.mutable_object();
  leaf->set_kind(v1::ObjectLeaf::KIND_SLICE);
  const auto* s = reinterpret_cast<PySliceObject*>(slice);
  uint32_t bit = 1, nulls = 0;
  for (PyObject* part : {s->start, s->stop, s->step}) {
    int64_t number = 0;
    const PyRef index =
        PyRef::Steal(part == Py_None ? nullptr : PyNumber_Index(part));
    if (index) number = PyLong_AsLongLong(index.get());
    if (!index || PyErr_Occurred() != nullptr) {
      ClearOwnError();
      nulls |= bit;
      number = 0;
    }
    leaf->add_ints(number);
    bit <<= 1;
  }
  leaf->set_null_mask(nulls);
  return Leaf(std::move(value));
}

}  // namespace

PyValue ValueReader::Read(PyObject* object, ReadMode mode,
                          const char* keyword) const {
  ReadBudget own;
  return ReadValue(object, mode, keyword,
                   mode.budget == nullptr ? &own : mode.budget);
}

PyValue ValueReader::ReadItems(PyObject* tuple, ReadMode mode) const {
  ReadBudget own;
  ReadBudget* const budget = mode.budget == nullptr ? &own : mode.budget;
  // The tuple is a section; its items are the values.
  budget->messages += kListMessages;
  PyValue out = ReadList(tuple, mode, budget);
  budget->messages -= kListMessages;
  return out;
}

PyValue ValueReader::ReadSection(PyObject* object, ReadMode mode) const {
  if (PyTuple_Check(object)) return ReadItems(object, mode);
  if (!PyDict_Check(object)) return PyValue();
  ReadBudget own;
  ReadBudget* const budget = mode.budget == nullptr ? &own : mode.budget;
  budget->messages += kMapMessages;
  PyValue out = ReadDict(object, mode, budget);
  budget->messages -= kMapMessages;
  return out;
}

PyValue ValueReader::ReadValue(PyObject* object, ReadMode mode,
                               const char* keyword, ReadBudget* budget) const {
  if (object == nullptr || object == Py_None) return PyValue();
  if (const char* const limit = Exhausted(*budget); limit != nullptr)
    return Cut(object, 0, limit);
  --budget->values;
  Charge(kValueBytes, budget);
  if (torch_->IsTensor(object)) {
    --budget->tensors;
    Charge(kTensorBytes, budget);
    return ReadTensor(object, mode);
  }
  if (PyValue number = Number(object); number.kind != PyValue::Kind::kNull) {
    Charge(NumberBytes(number), budget);
    return number;
  }
  const auto leaf = [budget](PyValue value) {
    Charge(value.leaf->ByteSizeLong(), budget);
    return value;
  };
  const bool is_device = keyword != nullptr &&
                         std::string_view(keyword) == "device" &&
                         PyUnicode_CheckExact(object);
  // A subclass (enum, numpy.float64) is recorded by the value of its base type:
  // its methods belong to the program, and are not called.
  if (PyLong_Check(object) || PyFloat_Check(object) ||
      (PyUnicode_Check(object) && !is_device))
    return leaf(Scalar(object, TypeName(Py_TYPE(object))));
  if (PyTuple_CheckExact(object) || PyList_Check(object))
    return ReadList(object, mode, budget);
  // Outputs of Hugging Face are dicts without those fields that are None;
  // msprobe records the fields.
  if (PyDict_CheckExact(object) ||
      (PyDict_Check(object) &&
       PyObject_HasAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)),
                              "__dataclass_fields__") == 0))
    return ReadDict(object, mode, budget);
  PyValue out = ReadOther(object, mode, keyword, budget);
  if (out.leaf != nullptr) Charge(out.leaf->ByteSizeLong(), budget);
  return out;
}

PyValue ValueReader::ReadList(PyObject* object, ReadMode mode,
                              ReadBudget* budget) const {
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(object);
  Inside inside(object, static_cast<uint64_t>(count), kListMessages, budget);
  if (inside.cut.has_value()) return *std::move(inside.cut);
  PyValue out;
  out.kind = PyValue::Kind::kList;
  out.items.reserve(static_cast<size_t>(
      std::min(count, static_cast<Py_ssize_t>(budget->values))));
  // The size is read again, because reading an item may run code that changes
  // the list.
  for (Py_ssize_t i = 0; i < count && i < PySequence_Fast_GET_SIZE(object);
       ++i) {
    if (const char* const limit = Exhausted(*budget); limit != nullptr) {
      out.items.push_back(Cut("list", static_cast<uint64_t>(count),
                              static_cast<uint64_t>(i), limit));
      break;
    }
    const PyRef item = PyRef::Share(PySequence_Fast_GET_ITEM(object, i));
    out.items.push_back(ReadValue(item.get(), mode, nullptr, budget));
  }
  return out;
}

PyValue ValueReader::ReadDict(PyObject* object, ReadMode mode,
                              ReadBudget* budget) const {
  const Py_ssize_t count = PyDict_Size(object);
  Inside inside(object, static_cast<uint64_t>(count), kMapMessages, budget);
  if (inside.cut.has_value()) return *std::move(inside.cut);
  // A copy, because reading a value may run code that changes the dict.
  std::vector<std::pair<PyRef, PyRef>> items;
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; items.size() <= budget->values &&
                          PyDict_Next(object, &at, &key, &value) != 0;)
    items.emplace_back(PyRef::Share(key), PyRef::Share(value));
  PyValue out;
  out.kind = PyValue::Kind::kMap;
  for (const auto& [name, item] : items) {
    const size_t position = out.items.size();
    if (const char* const limit = Exhausted(*budget); limit != nullptr) {
      out.names.emplace_back("rankprobe_cut");
      out.items.push_back(
          Cut("dict", static_cast<uint64_t>(count), position, limit));
      break;
    }
    out.names.push_back(KeyText(name.get(), static_cast<Py_ssize_t>(position)));
    Charge(out.names.back().size(), budget);
    out.items.push_back(ReadValue(item.get(), mode, nullptr, budget));
  }
  ClearOwnError();
  return out;
}

PyValue ValueReader::ReadOther(PyObject* object, ReadMode mode,
                               const char* keyword, ReadBudget* budget) const {
  const TorchBindings& t = *torch_;
  const std::string_view name = keyword == nullptr ? "" : keyword;
  if (PySlice_Check(object)) return Slice(object);
  if (object == Py_Ellipsis) return Object(v1::ObjectLeaf::KIND_ELLIPSIS);
  if (t.IsInstance(object, t.size_type)) {
    v1::Value value;
    value.mutable_object()->set_kind(v1::ObjectLeaf::KIND_TORCH_SIZE);
    absl::InlinedVector<int64_t, 6> sizes;
    if (!ReadInts(object, &sizes)) ClearOwnError();
    for (const int64_t size : sizes) value.mutable_object()->add_ints(size);
    return Leaf(std::move(value));
  }
  if (t.IsInstance(object, t.dtype_type))
    return Object(v1::ObjectLeaf::KIND_DTYPE, PyText(object));
  if (t.IsInstance(object, t.device_type))
    return Object(v1::ObjectLeaf::KIND_DEVICE, PyText(object));
  if (t.IsInstance(object, t.memory_format_type)) {
    const std::string text = PyText(object);
    return Object(v1::ObjectLeaf::KIND_MEMORY_FORMAT,
                  std::string(absl::StripPrefix(text, "torch.")));
  }
  if (name == "device" && PyUnicode_CheckExact(object))
    return Object(v1::ObjectLeaf::KIND_DEVICE, PyText(object));
  // Other types are rare: Python converts them to a simpler, tagged object.
  const PyRef simple = PyRef::Steal(
      PyObject_CallFunctionObjArgs(t.convert.get(), object, nullptr));
  if (!simple || !PyTuple_Check(simple.get()) ||
      PyTuple_GET_SIZE(simple.get()) < 2) {
    ClearOwnError();
    return PyValue();
  }
  const auto part = [&](Py_ssize_t i) {
    return PyTuple_GET_ITEM(simple.get(), i);
  };
  const std::string tag = PyText(part(0));
  if (tag == "value") {
    Inside inside(object, 0, 0, budget);
    return inside.cut.has_value() ? *std::move(inside.cut)
                                  : ReadValue(part(1), mode, keyword, budget);
  }
  if (tag == "scalar") return Scalar(part(2), PyText(part(1)));
  if (tag == "group") {
    v1::Value value;
    value.mutable_object()->set_kind(v1::ObjectLeaf::KIND_PROCESS_GROUP);
    value.mutable_object()->set_text(PyText(part(2)));
    absl::InlinedVector<int64_t, 6> ranks;
    if (!ReadInts(part(1), &ranks)) ClearOwnError();
    for (const int64_t rank : ranks) value.mutable_object()->add_ints(rank);
    return Leaf(std::move(value));
  }
  if (tag == "reduce_op")
    return Object(v1::ObjectLeaf::KIND_REDUCE_OP, PyText(part(1)));
  if (tag == "p2p" && PyTuple_GET_SIZE(simple.get()) == 6) {
    PyValue out = ReadValue(part(1), mode, nullptr, budget);
    if (out.kind != PyValue::Kind::kTensor) return PyValue();
    out.kind = PyValue::Kind::kP2p;
    out.leaf = std::make_unique<v1::Value>();
    v1::P2pOp* op = out.leaf->mutable_p2p();
    op->set_op(PyText(part(2)));
    op->set_peer(PyLong_AsLongLong(part(3)));
    op->set_tag(PyLong_AsLongLong(part(4)));
    op->set_group_id(PyText(part(5)));
    ClearOwnError();
    return out;
  }
  if (tag == "tensor") {  // described already: ndarray
    PyValue out;
    out.kind = PyValue::Kind::kTensor;
    out.tensor = std::make_unique<PyTensorView>();
    if (ReadDescribed(object, mode, out.tensor.get())) {
      budget->tensors -= std::min<uint64_t>(budget->tensors, 1);
      return out;
    }
  }
  return PyValue();
}

PyValue ValueReader::ReadTensor(PyObject* tensor, ReadMode mode) const {
  PyValue out;
  out.kind = PyValue::Kind::kTensor;
  out.tensor = std::make_unique<PyTensorView>();
  if (!torch_->IsPlainTensor(tensor) ||
      !ReadPlain(tensor, mode, out.tensor.get())) {
    *out.tensor = PyTensorView();
    if (!ReadDescribed(tensor, mode, out.tensor.get())) return PyValue();
  }
  out.tensor->is_parameter = torch_->IsParameter(tensor);
  return WithinDimensions(std::move(out));
}

}  // namespace rankprobe
