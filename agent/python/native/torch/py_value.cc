#include "agent/python/native/torch/py_value.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/python/native/torch/py_statistics.h"
#include "common/records/cut_value.h"
#include "common/tensor/dtype.h"

namespace rankprobe {
namespace {

constexpr uint64_t kReuseBytes = 8 << 10;
// At least so much of a record goes for a value, for a tensor.
constexpr uint64_t kValueBytes = 4;
constexpr uint64_t kTensorBytes = 40;
// Above all tokens of host memory.
constexpr uintptr_t kDeviceStorage = uintptr_t{1} << 62;

bool ReadInts(PyObject* tuple, absl::InlinedVector<int64_t, 6>* out) {
  if (tuple == nullptr || !PyTuple_Check(tuple)) return false;
  const Py_ssize_t count = PyTuple_GET_SIZE(tuple);
  out->resize(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    (*out)[static_cast<size_t>(i)] =
        PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
  }
  return PyErr_Occurred() == nullptr;
}

std::string Text(PyObject* object) {
  const PyRef text = PyRef::Steal(PyObject_Str(object));
  Py_ssize_t size = 0;
  const char* data =
      text ? PyUnicode_AsUTF8AndSize(text.get(), &size) : nullptr;
  if (data != nullptr) return std::string(data, static_cast<size_t>(size));
  PyErr_Clear();
  // Not UTF-8 (a lone surrogate): as Python would print it.
  const PyRef ascii = PyRef::Steal(text ? PyObject_ASCII(text.get()) : nullptr);
  data = ascii ? PyUnicode_AsUTF8AndSize(ascii.get(), &size) : nullptr;
  PyErr_Clear();
  return data == nullptr ? "" : std::string(data, static_cast<size_t>(size));
}

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

// Null: there is room for another value.
const char* Exhausted(const ReadBudget& budget) {
  if (budget.values == 0) return "length";
  if (budget.tensors == 0) return "tensors";
  return budget.bytes == 0 ? "bytes" : nullptr;
}

void Charge(uint64_t bytes, ReadBudget* budget) {
  budget->bytes -= std::min(budget->bytes, bytes);
}

// The inside of a container or object; `cut` is set where it may not be read.
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

// A key of a dict as a name.
std::string KeyText(PyObject* key, Py_ssize_t position) {
  std::string text = Text(key);
  if (text.size() <= kMaxNameBytes) return text;
  // Long keys that begin alike stay apart.
  return absl::StrCat(Utf8Prefix(text, kMaxNameBytes - 96), "...(", text.size(),
                      " bytes, item ", position, ")");
}

// Beyond 64 bits.
void BigInt(PyObject* object, const std::string& type, v1::Value* out) {
  const PyRef bits =
      PyRef::Steal(PyObject_CallMethod(object, "bit_length", nullptr));
  const long long count = bits ? PyLong_AsLongLong(bits.get()) : -1;
  PyErr_Clear();
  // To within one: the digits themselves take quadratic time.
  const auto digits = static_cast<uint64_t>(
      static_cast<double>(std::max(count, 0LL)) * 0.30102999566398120 + 1);
  if (digits <= kMaxIntegerDigits) {
    std::string text = Text(object);
    // Python may be told to print fewer.
    if (!text.empty()) {
      out->mutable_scalar()->set_type(type);
      out->mutable_scalar()->set_big_int(std::move(text));
      return;
    }
  }
  SetCut(type, digits, 0, "length", out);
}

// A number or text; `type_name` is the JSON "type".
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
    std::string text = Text(object);
    if (text.size() > kMaxTextBytes) {
      SetCutText(type, text, kMaxTextBytes, "length", &value);
    } else {
      scalar->set_s(std::move(text));
    }
  }
  return Leaf(std::move(value));
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
      PyErr_Clear();
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

uint64_t StorageTokens::Token(uintptr_t storage, PyObject* tensor,
                              const TorchBindings& t) {
  Life& life = lives_[storage];
  if (life.weak) {
    PyObject* alive = PyWeakref_GetObject(life.weak.get());
    if (alive == tensor) return life.token;
    uint64_t data = 0;
    int64_t offset = 0;
    if (alive != nullptr && alive != Py_None &&
        t.CallInt(t.data_ptr, alive, &data)) {
      const PyRef keep = PyRef::Share(alive);
      uint64_t unsigned_offset = 0;
      PyRef dtype = t.Get(t.dtype, alive);
      if (!dtype) PyErr_Clear();
      if (dtype && t.CallInt(t.storage_offset, alive, &unsigned_offset)) {
        offset = static_cast<int64_t>(unsigned_offset) *
                 static_cast<int64_t>(ElementSize(t.Dtype(dtype.get())));
        if (data - static_cast<uint64_t>(offset) == storage) return life.token;
      }
    }
  }
  life.weak = PyRef::Steal(PyWeakref_NewRef(tensor, nullptr));
  if (!life.weak) PyErr_Clear();
  life.token = next_++;
  return life.token;
}

PyValue ValueReader::Read(PyObject* object, ReadMode mode,
                          const char* keyword) const {
  ReadBudget own;
  return ReadValue(object, mode, keyword,
                   mode.budget == nullptr ? &own : mode.budget);
}

PyValue ValueReader::ReadItems(PyObject* tuple, ReadMode mode) const {
  ReadBudget own;
  ReadBudget* const budget = mode.budget == nullptr ? &own : mode.budget;
  // What is read is a section; its items are the values.
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
  const auto leaf = [budget](PyValue value) {
    Charge(value.leaf->ByteSizeLong(), budget);
    return value;
  };
  if (PyBool_Check(object)) return leaf(Scalar(object, "bool"));
  if (PyLong_CheckExact(object)) return leaf(Scalar(object, "int"));
  if (PyFloat_CheckExact(object)) return leaf(Scalar(object, "float"));
  const bool device_keyword =
      keyword != nullptr && std::string_view(keyword) == "device";
  if (PyUnicode_CheckExact(object) && !device_keyword)
    return leaf(Scalar(object, "str"));
  if (PyTuple_CheckExact(object) || PyList_CheckExact(object))
    return ReadList(object, mode, budget);
  if (PyDict_Check(object)) return ReadDict(object, mode, budget);
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
  // Again: what reading an item runs may have changed the list.
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
  // A copy: what reading a value runs must not see it change.
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
  PyErr_Clear();
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
    if (!ReadInts(object, &sizes)) PyErr_Clear();
    for (const int64_t size : sizes) value.mutable_object()->add_ints(size);
    return Leaf(std::move(value));
  }
  if (t.IsInstance(object, t.dtype_type))
    return Object(v1::ObjectLeaf::KIND_DTYPE, Text(object));
  if (t.IsInstance(object, t.device_type))
    return Object(v1::ObjectLeaf::KIND_DEVICE, Text(object));
  if (t.IsInstance(object, t.memory_format_type)) {
    const std::string text = Text(object);
    return Object(v1::ObjectLeaf::KIND_MEMORY_FORMAT,
                  std::string(absl::StripPrefix(text, "torch.")));
  }
  if (name == "device" && PyUnicode_CheckExact(object))
    return Object(v1::ObjectLeaf::KIND_DEVICE, Text(object));
  // The rest is rare: Python turns it into something simpler, tagged.
  const PyRef simple = PyRef::Steal(
      PyObject_CallFunctionObjArgs(t.convert.get(), object, nullptr));
  if (!simple || !PyTuple_Check(simple.get()) ||
      PyTuple_GET_SIZE(simple.get()) < 2) {
    PyErr_Clear();
    return PyValue();
  }
  const auto part = [&](Py_ssize_t i) {
    return PyTuple_GET_ITEM(simple.get(), i);
  };
  const std::string tag = Text(part(0));
  if (tag == "value") {
    Inside inside(object, 0, 0, budget);
    return inside.cut.has_value() ? *std::move(inside.cut)
                                  : ReadValue(part(1), mode, keyword, budget);
  }
  if (tag == "scalar") return Scalar(part(2), Text(part(1)));
  if (tag == "group") {
    v1::Value value;
    value.mutable_object()->set_kind(v1::ObjectLeaf::KIND_PROCESS_GROUP);
    value.mutable_object()->set_text(Text(part(2)));
    absl::InlinedVector<int64_t, 6> ranks;
    if (!ReadInts(part(1), &ranks)) PyErr_Clear();
    for (const int64_t rank : ranks) value.mutable_object()->add_ints(rank);
    return Leaf(std::move(value));
  }
  if (tag == "reduce_op")
    return Object(v1::ObjectLeaf::KIND_REDUCE_OP, Text(part(1)));
  if (tag == "p2p" && PyTuple_GET_SIZE(simple.get()) == 6) {
    PyValue out = ReadValue(part(1), mode, nullptr, budget);
    if (out.kind != PyValue::Kind::kTensor) return PyValue();
    out.kind = PyValue::Kind::kP2p;
    out.leaf = std::make_unique<v1::Value>();
    v1::P2pOp* op = out.leaf->mutable_p2p();
    op->set_op(Text(part(2)));
    op->set_peer(PyLong_AsLongLong(part(3)));
    op->set_tag(PyLong_AsLongLong(part(4)));
    op->set_group_id(Text(part(5)));
    PyErr_Clear();
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
  if (torch_->IsPlainTensor(tensor) &&
      ReadPlain(tensor, mode.reuse, out.tensor.get())) {
    return WithinDimensions(std::move(out));
  }
  *out.tensor = PyTensorView();
  if (!ReadDescribed(tensor, mode, out.tensor.get())) return PyValue();
  return WithinDimensions(std::move(out));
}

bool ValueReader::ReadMemory(PyObject* tensor, PyTensorView* out) const {
  const TorchBindings& t = *torch_;
  if (!t.IsTrue(t.is_cpu, tensor)) return false;
  const PyRef layout = t.Get(t.layout, tensor), dtype = t.Get(t.dtype, tensor);
  if (!layout || !dtype || layout.get() != t.strided.get()) {
    PyErr_Clear();
    return false;
  }
  out->dtype = t.Dtype(dtype.get());
  if (out->dtype == v1::DTYPE_UNSPECIFIED) return false;
  if (!t.CallInt(t.data_ptr, tensor, &out->address)) return false;  // functorch
  if (!ReadInts(t.Get(t.shape, tensor).get(), &out->shape) ||
      !ReadInts(t.Call(t.stride, tensor).get(), &out->strides)) {
    PyErr_Clear();
    return false;
  }
  return true;
}

bool ValueReader::ReadPlain(PyObject* tensor, bool reuse,
                            PyTensorView* out) const {
  const TorchBindings& t = *torch_;
  if (!t.dlpack.Read(tensor, &out->dtype, &out->address, &out->shape,
                     &out->strides) &&
      !ReadMemory(tensor, out)) {
    return false;
  }
  const bool complex = out->dtype == v1::DTYPE_COMPLEX32 ||
                       out->dtype == v1::DTYPE_COMPLEX64 ||
                       out->dtype == v1::DTYPE_COMPLEX128;
  const PyRef negative = t.Call(t.is_neg, tensor);
  const PyRef conjugate = complex ? t.Call(t.is_conj, tensor) : PyRef();
  if (!negative || negative.get() != Py_False ||
      (complex && (!conjugate || conjugate.get() != Py_False))) {
    PyErr_Clear();
    return false;
  }
  out->requires_grad = t.IsTrue(t.requires_grad, tensor);
  out->keep = PyRef::Share(tensor);
  uint64_t bytes = ElementSize(out->dtype);
  for (const int64_t size : out->shape) bytes *= static_cast<uint64_t>(size);
  // Reading a small tensor again costs less than knowing it.
  if (bytes < kReuseBytes) reuse = false;
  int64_t version = 0;
  uint64_t offset = 0;
  // An inference tensor has no version: never taken for seen.
  if (reuse && out->address != 0 && t.GetInt(t.version, tensor, &version) &&
      t.CallInt(t.storage_offset, tensor, &offset)) {
    const uintptr_t storage = out->address - offset * ElementSize(out->dtype);
    out->identity.storage = reinterpret_cast<const void*>(
        tokens_->Token(storage, tensor, t));  // NOLINT: a number as a key
    out->identity.version = static_cast<uint64_t>(version);
  }
  return true;
}

uintptr_t ValueReader::Storage(PyObject* tensor) const {
  const TorchBindings& t = *torch_;
  uint64_t address = 0, offset = 0;
  if (!t.IsPlainTensor(tensor) || !t.IsTrue(t.is_cpu, tensor) ||
      !t.CallInt(t.data_ptr, tensor, &address) ||
      !t.CallInt(t.storage_offset, tensor, &offset)) {
    return 0;
  }
  const PyRef dtype = t.Get(t.dtype, tensor);
  if (!dtype) PyErr_Clear();
  return dtype ? address - offset * ElementSize(t.Dtype(dtype.get())) : 0;
}

// describe() gives a dict: type, dtype, shape, requires_grad; address, strides
// and keep when there is memory to read; slot when the numbers, or with an
// address the bytes, come later; stats, which beat what the memory gives;
// numpy; mesh, placements.
// text_bytes: the memory is that of a NumPy text array and that long.
bool ValueReader::ReadDescribed(PyObject* tensor, ReadMode mode,
                                PyTensorView* out) const {
  const PyRef said = PyRef::Steal(PyObject_CallFunction(
      torch_->describe.get(), "OiL", tensor, static_cast<int>(mode.needs),
      mode.reuse ? tokens_->device_generation() : int64_t{-1}));
  if (!said || !PyDict_Check(said.get())) {
    PyErr_Clear();
    return false;
  }
  const auto get = [&](const char* key) {
    PyObject* value = PyDict_GetItemString(said.get(), key);
    return value == Py_None ? nullptr : value;
  };
  out->summary = std::make_unique<v1::TensorSummary>();
  PyObject* dtype = get("dtype");
  const std::string dtype_text = dtype == nullptr ? "" : Text(dtype);
  out->dtype = ParseDtype(dtype_text);
  if (out->dtype == v1::DTYPE_UNSPECIFIED)
    out->summary->set_dtype_name(dtype_text);
  if (PyObject* type = get("type"); type != nullptr)
    out->summary->set_type(Text(type));
  if (get("numpy") != nullptr) {
    out->summary->set_numpy(true);
    out->summary->set_numpy_dtype(dtype_text);
  }
  if (PyObject* stats = get("stats"); stats != nullptr)
    ReadPyStatistics(stats, out->summary->mutable_stats());
  if (!ReadInts(get("shape"), &out->shape)) {
    PyErr_Clear();
    return false;
  }
  out->requires_grad = get("requires_grad") == Py_True;
  if (PyObject* mesh = get("mesh"); mesh != nullptr) {
    // One of over 10,000 ranks is left out.
    if (std::string text = Text(mesh); text.size() <= kMaxMeshBytes)
      out->summary->set_device_mesh_json(std::move(text));
  }
  if (PyObject* list = get("placements"); list != nullptr) {
    const PyRef fast = PyRef::Steal(PySequence_Fast(list, ""));
    for (Py_ssize_t i = 0; fast && i < PySequence_Fast_GET_SIZE(fast.get());
         ++i) {
      PyObject* one = PySequence_Fast_GET_ITEM(fast.get(), i);
      int kind = 0;
      unsigned dim = 0;
      const char* reduce = "";
      if (!PyArg_ParseTuple(one, "iIs", &kind, &dim, &reduce)) break;
      v1::Placement* placement = out->summary->add_placements();
      placement->set_kind(static_cast<v1::Placement::Kind>(kind));
      placement->set_dim(dim);
      placement->set_reduce_op(reduce);
    }
    PyErr_Clear();
  }
  PyObject* address = get("address");
  if (PyObject* slot = get("slot"); slot != nullptr) {
    out->slot = PyLong_AsUnsignedLongLong(slot);
    if (get("full") == Py_True) tokens_->WantFinish();
    out->arrival = address == nullptr ? Arrival::kNumbers : Arrival::kBytes;
    if (address != nullptr) {
      // The same bytes for as long as the slot is known.
      out->identity.storage =
          reinterpret_cast<const void*>(kDeviceStorage | out->slot);  // NOLINT
    }
  }
  if (PyObject* bytes = get("text_bytes"); bytes != nullptr) {
    out->text = true;
    out->dtype = v1::DTYPE_UINT8;
    out->summary->clear_dtype_name();
    out->summary->mutable_shape()->Assign(out->shape.begin(), out->shape.end());
    out->shape = {PyLong_AsLongLong(bytes)};
  }
  out->no_data = (address == nullptr && out->arrival == Arrival::kNow) ||
                 out->dtype == v1::DTYPE_UNSPECIFIED;
  if (!out->no_data && address != nullptr) {
    out->address = PyLong_AsUnsignedLongLong(address);
    out->keep = PyRef::Share(get("keep"));
    if (!ReadInts(get("strides"), &out->strides) ||
        out->strides.size() != out->shape.size()) {
      PyErr_Clear();
      return false;
    }
  }
  return true;
}

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
  info.identity = identity;
  info.arrival = arrival;
  info.slot = slot;
  return info;
}

void Fill(CallBuilder& builder, const PyValue& value, v1::Value* out) {
  switch (value.kind) {
    case PyValue::Kind::kNull:
      return;
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
