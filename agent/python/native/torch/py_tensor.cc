// SPDX-License-Identifier: Apache-2.0
// Tensors as ValueReader reads them: by their memory where that can be had,
// else by what describe() says of them.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "agent/python/native/torch/program_error.h"
#include "agent/python/native/torch/py_read.h"
#include "agent/python/native/torch/py_statistics.h"
#include "agent/python/native/torch/py_value.h"
#include "common/io/content_hash.h"
#include "common/tensor/dtype.h"

namespace rankprobe {
namespace {

constexpr uint64_t kReuseBytes = 8 << 10;
// Above all tokens of host memory.
constexpr uintptr_t kDeviceStorage = uintptr_t{1} << 62;

}  // namespace

uint64_t StorageTokens::Token(uintptr_t storage, PyObject* tensor,
                              const TorchBindings& t) {
  Life& life = lives_[storage];
  if (life.weak) {
    const PyRef alive = Referent(life.weak.get());
    if (alive.get() == tensor) return life.token;
    uint64_t data = 0;
    int64_t offset = 0;
    if (alive && t.CallInt(t.data_ptr, alive.get(), &data)) {
      uint64_t unsigned_offset = 0;
      PyRef dtype = t.Get(t.dtype, alive.get());
      if (!dtype) ClearOwnError();
      if (dtype && t.CallInt(t.storage_offset, alive.get(), &unsigned_offset)) {
        offset = static_cast<int64_t>(unsigned_offset) *
                 static_cast<int64_t>(ElementSize(t.Dtype(dtype.get())));
        if (data - static_cast<uint64_t>(offset) == storage) return life.token;
      }
    }
  }
  life.weak = PyRef::Steal(PyWeakref_NewRef(tensor, nullptr));
  if (!life.weak) ClearOwnError();
  life.token = next_++;
  return life.token;
}

bool ValueReader::ReadMemory(PyObject* tensor, PyTensorView* out,
                             int* cuda_device) const {
  const TorchBindings& t = *torch_;
  *cuda_device = -1;
  if (!t.IsTrue(t.is_cpu, tensor)) {
    uint64_t device = 0;
    if (!t.is_cuda || !t.IsTrue(t.is_cuda, tensor) ||
        !t.CallInt(t.get_device, tensor, &device)) {
      return false;
    }
    *cuda_device = static_cast<int>(device);
  }
  const PyRef layout = t.Get(t.layout, tensor), dtype = t.Get(t.dtype, tensor);
  if (!layout || !dtype || layout.get() != t.strided.get()) {
    ClearOwnError();
    return false;
  }
  out->dtype = t.Dtype(dtype.get());
  if (out->dtype == v1::DTYPE_UNSPECIFIED) return false;
  if (!t.CallInt(t.data_ptr, tensor, &out->address)) return false;  // functorch
  if (!ReadInts(t.Get(t.shape, tensor).get(), &out->shape) ||
      !ReadInts(t.Call(t.stride, tensor).get(), &out->strides)) {
    ClearOwnError();
    return false;
  }
  return true;
}

void ValueReader::Identify(PyObject* tensor, uint64_t* token, uint64_t* version,
                           const PyTensorView& view) const {
  const TorchBindings& t = *torch_;
  int64_t counted = 0;
  uint64_t offset = 0;
  // An inference tensor has no version, so it never counts as seen.
  if (view.address == 0 || !t.GetInt(t.version, tensor, &counted) ||
      !t.CallInt(t.storage_offset, tensor, &offset)) {
    return;
  }
  *token = tokens_->Token(view.address - offset * ElementSize(view.dtype),
                          tensor, t);
  *version = static_cast<uint64_t>(counted);
}

bool ValueReader::ReadPlain(PyObject* tensor, ReadMode mode,
                            PyTensorView* out) const {
  const TorchBindings& t = *torch_;
  int cuda_device = -1;
  if (!t.dlpack.Read(tensor, &out->dtype, &out->address, &out->shape,
                     &out->strides, &cuda_device) &&
      !ReadMemory(tensor, out, &cuda_device)) {
    return false;
  }
  const bool complex = out->dtype == v1::DTYPE_COMPLEX32 ||
                       out->dtype == v1::DTYPE_COMPLEX64 ||
                       out->dtype == v1::DTYPE_COMPLEX128;
  const PyRef negative = t.Call(t.is_neg, tensor);
  const PyRef conjugate = complex ? t.Call(t.is_conj, tensor) : PyRef();
  if (!negative || negative.get() != Py_False ||
      (complex && (!conjugate || conjugate.get() != Py_False))) {
    ClearOwnError();
    return false;
  }
  out->requires_grad = t.IsTrue(t.requires_grad, tensor);
  if (cuda_device >= 0) return ReduceOnDevice(tensor, mode, cuda_device, out);
  out->keep = PyRef::Share(tensor);
  uint64_t bytes = ElementSize(out->dtype);
  for (const int64_t size : out->shape) bytes *= static_cast<uint64_t>(size);
  // Reading a small tensor again costs less than identifying it.
  if (mode.reuse && bytes >= kReuseBytes) {
    uint64_t token = 0;
    Identify(tensor, &token, &out->identity.version, *out);
    out->identity.storage =
        reinterpret_cast<const void*>(token);  // NOLINT: a number as a key
  }
  return true;
}

bool ValueReader::ReduceOnDevice(PyObject* tensor, ReadMode mode,
                                 int cuda_device, PyTensorView* out) const {
  const TorchBindings& t = *torch_;
  if (t.device_statistics == nullptr ||
      mode.needs != RecordedCall::Needs::kNumbers) {
    return false;
  }
  DeviceStatistics::Tensor launch;
  const PyRef number = PyRef::Steal(PyLong_FromLong(cuda_device));
  uint64_t stream = 0;
  if (!number || !t.CallInt(t.raw_stream, number.get(), &stream)) {
    ClearOwnError();
    return false;
  }
  launch.view = out->Info().view;
  launch.device = cuda_device;
  launch.stream = static_cast<uintptr_t>(stream);
  launch.generation = tokens_->device_generation();
  if (mode.reuse) Identify(tensor, &launch.storage, &launch.version, *out);
  const absl::StatusOr<uint64_t> slot = t.device_statistics->Reduce(launch);
  // Also if there was no space for this tensor.
  if (t.device_statistics->full()) tokens_->WantFinish();
  if (!slot.ok()) return false;
  out->slot = *slot;
  out->arrival = Arrival::kNumbers;
  // The host must not read it.
  out->address = 0;
  return true;
}

std::string ValueReader::Digest(PyObject* tensor, uint64_t limit_bytes) const {
  PyTensorView view;
  // kNow: memory on a device is not read.
  if (!torch_->IsPlainTensor(tensor) ||
      !ReadPlain(tensor, {false, RecordedCall::Needs::kNow}, &view) ||
      view.address == 0) {
    return "";
  }
  const auto size = static_cast<uint64_t>(ElementSize(view.dtype));
  uint64_t elements = 1;
  for (size_t i = view.shape.size(); i-- > 0;) {
    if (view.shape[i] != 1 &&
        view.strides[i] != static_cast<int64_t>(elements)) {
      return "";
    }
    elements *= static_cast<uint64_t>(view.shape[i]);
  }
  if (elements == 0 || size == 0) return "";
  const uint64_t count =
      std::max<uint64_t>(1, std::min(elements, limit_bytes / size));
  FileHash hash;
  hash.Add({reinterpret_cast<const char*>(view.address),  // NOLINT: as said
            static_cast<size_t>(count * size)});
  return absl::StrFormat(
      "%s[%s] %016x", absl::StripPrefix(TorchDtypeName(view.dtype), "torch."),
      absl::StrJoin(view.shape, ", "), hash.Digest());
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
  if (!dtype) ClearOwnError();
  return dtype ? address - offset * ElementSize(t.Dtype(dtype.get())) : 0;
}

// describe() returns a dict: type, dtype, shape, requires_grad; address,
// strides and keep if there is memory to read; slot if the numbers, or with an
// address the bytes, come later; stats, which override those of the memory;
// numpy; mesh, placements, global_shape. text_bytes: the memory is a NumPy text
// array of this length.
bool ValueReader::ReadDescribed(PyObject* tensor, ReadMode mode,
                                PyTensorView* out) const {
  const PyRef said = PyRef::Steal(PyObject_CallFunction(
      torch_->describe.get(), "OiL", tensor, static_cast<int>(mode.needs),
      mode.reuse ? tokens_->device_generation() : int64_t{-1}));
  if (!said || !PyDict_Check(said.get())) {
    ClearOwnError();
    return false;
  }
  const auto get = [&](const char* key) {
    PyObject* value = PyDict_GetItemString(said.get(), key);
    return value == Py_None ? nullptr : value;
  };
  out->summary = std::make_unique<v1::TensorSummary>();
  PyObject* dtype = get("dtype");
  const std::string dtype_text = dtype == nullptr ? "" : PyText(dtype);
  out->dtype = ParseDtype(dtype_text);
  if (out->dtype == v1::DTYPE_UNSPECIFIED)
    out->summary->set_dtype_name(dtype_text);
  if (PyObject* type = get("type"); type != nullptr)
    out->summary->set_type(PyText(type));
  if (get("numpy") != nullptr) {
    out->summary->set_numpy(true);
    out->summary->set_numpy_dtype(dtype_text);
  }
  if (PyObject* stats = get("stats"); stats != nullptr)
    ReadPyStatistics(stats, out->summary->mutable_stats());
  if (!ReadInts(get("shape"), &out->shape)) {
    ClearOwnError();
    return false;
  }
  out->requires_grad = get("requires_grad") == Py_True;
  if (PyObject* mesh = get("mesh"); mesh != nullptr) {
    // A mesh of more than some 10,000 ranks is left out.
    if (std::string text = PyText(mesh); text.size() <= kMaxMeshBytes)
      out->summary->set_device_mesh_json(std::move(text));
  }
  if (PyObject* list = get("placements"); list != nullptr) {
    const PyRef fast = PyRef::Steal(PySequence_Fast(list, ""));
    for (Py_ssize_t i = 0; fast && i < PySequence_Fast_GET_SIZE(fast.get());
         ++i) {
      PyObject* one = PySequence_Fast_GET_ITEM(fast.get(), i);
      int kind = 0;
      unsigned dim = 0, split_factor = 0;
      const char* reduce = "";
      if (!PyArg_ParseTuple(one, "iIsI", &kind, &dim, &reduce, &split_factor))
        break;
      v1::Placement* placement = out->summary->add_placements();
      placement->set_kind(static_cast<v1::Placement::Kind>(kind));
      placement->set_dim(dim);
      placement->set_reduce_op(reduce);
      placement->set_split_factor(split_factor);
    }
    ClearOwnError();
  }
  if (PyObject* whole = get("global_shape"); whole != nullptr) {
    absl::InlinedVector<int64_t, 6> sizes;
    if (ReadInts(whole, &sizes))
      out->summary->mutable_global_shape()->Assign(sizes.begin(), sizes.end());
    ClearOwnError();
  }
  PyObject* address = get("address");
  if (PyObject* slot = get("slot"); slot != nullptr) {
    out->slot = PyLong_AsUnsignedLongLong(slot);
    if (get("full") == Py_True) tokens_->WantFinish();
    out->arrival = address == nullptr ? Arrival::kNumbers : Arrival::kBytes;
    if (address != nullptr) {
      // The same bytes as long as the slot is known.
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
      ClearOwnError();
      return false;
    }
  }
  return true;
}

}  // namespace rankprobe
