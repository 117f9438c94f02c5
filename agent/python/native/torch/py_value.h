// SPDX-License-Identifier: Apache-2.0
// One Python argument, output or nested element, read with the GIL held into
// plain data that can be recorded without it.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PY_VALUE_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PY_VALUE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "agent/python/native/torch/torch_bindings.h"
#include "agent/runtime/recorder/recorder.h"
#include "common/base/limits.h"

namespace rankprobe {

// A tensor as memory. `keep` owns that memory.
struct PyTensorView {
  PyRef keep;
  uintptr_t address = 0;
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  bool requires_grad = false;
  bool is_parameter = false;
  // There are no bytes to read (meta, fake, sparse): `summary` has everything.
  bool no_data = false;
  // The bytes are those of a NumPy text array: `summary` has dtype and shape.
  bool text = false;
  absl::InlinedVector<int64_t, 6> shape, strides;
  TensorIdentity identity;
  // For a tensor on a device.
  Arrival arrival = Arrival::kNow;
  uint64_t slot = 0;
  // Set for a value that is not a plain torch.Tensor; its fields override those
  // above.
  std::unique_ptr<v1::TensorSummary> summary;

  // Points into this object.
  TensorInfo Info() const;
};

struct PyValue {
  // Numbers of exactly these types of Python need no message of their own.
  enum class Kind {
    kNull,
    kBool,
    kInt,
    kFloat,
    kTensor,
    kLeaf,
    kList,
    kMap,
    kP2p
  };
  Kind kind = Kind::kNull;
  // For kBool and kInt; for kFloat.
  int64_t integer = 0;
  double real = 0;
  std::unique_ptr<PyTensorView> tensor;
  std::unique_ptr<v1::Value> leaf;
  std::vector<PyValue> items;
  std::vector<std::string> names;
};

// Identifies memory that was seen before. A storage is known by its address as
// long as a tensor seen in it lives; the token identifies that life. Guarded by
// the GIL.
class StorageTokens {
 public:
  uint64_t Token(uintptr_t storage, PyObject* tensor, const TorchBindings& t);
  // The memory may have been written without increasing the version counter.
  void Forget(uintptr_t storage) { lives_.erase(storage); }
  // The same for an unknown tensor on a device.
  void ForgetDevices() { ++device_generation_; }
  void Clear() {
    lives_.clear();
    ForgetDevices();
  }
  // Enough results are deferred; TakeWantFinish returns whether this was called
  // since the last call.
  void WantFinish() { finish_wanted_ = true; }
  bool TakeWantFinish() { return std::exchange(finish_wanted_, false); }
  // Memory of devices seen under another number is no longer known.
  int64_t device_generation() const { return device_generation_; }

 private:
  struct Life {
    PyRef weak;
    uint64_t token = 0;
  };
  absl::flat_hash_map<uintptr_t, Life> lives_;
  uint64_t next_ = 1;
  int64_t device_generation_ = 0;
  bool finish_wanted_ = false;
};

// Remaining limits of one record (common/base/limits.h). The count of bytes is
// a lower bound: a record that is too large anyway is cut when it is encoded.
struct ReadBudget {
  uint64_t values = kMaxCallValues;
  uint64_t tensors = kMaxCallTensors;
  uint64_t bytes = kMaxRecordBytes;
  int messages = kMaxValueMessages;
  // Containers and objects that contain the value, outermost first.
  absl::InlinedVector<PyObject*, 8> inside;
};

struct ReadMode {
  // Whether a summary of the same bytes may be reused.
  bool reuse = true;
  RecordedCall::Needs needs = RecordedCall::Needs::kNow;
  // Shared by the values of one record; null: each value has its own.
  ReadBudget* budget = nullptr;
};

class ValueReader {
 public:
  ValueReader(const TorchBindings* torch, StorageTokens* tokens)
      : torch_(torch), tokens_(tokens) {}

  // `keyword`: the name of the keyword argument, or null. A value beyond a
  // limit, or that contains itself, ends with a CutValue.
  PyValue Read(PyObject* object, ReadMode mode,
               const char* keyword = nullptr) const;
  // Reads a tuple or dict that is a section of a call and not a value.
  PyValue ReadSection(PyObject* object, ReadMode mode) const;
  // Reads any tuple as a list, named or not.
  PyValue ReadItems(PyObject* tuple, ReadMode mode) const;
  // Returns "float32[2, 3] 91c0..", the digest of the first `limit_bytes` of a
  // plain, contiguous tensor in host memory; empty for other tensors.
  std::string Digest(PyObject* tensor, uint64_t limit_bytes) const;
  // Storage of a plain CPU tensor; 0 if not known.
  uintptr_t Storage(PyObject* tensor) const;

 private:
  PyValue ReadTensor(PyObject* tensor, ReadMode mode) const;
  bool ReadPlain(PyObject* tensor, ReadMode mode, PyTensorView* out) const;
  // Reads the place of its elements by PyTorch's descriptors. `cuda_device`:
  // see DlpackView::Read.
  bool ReadMemory(PyObject* tensor, PyTensorView* out, int* cuda_device) const;
  // Launches the statistics kernel on a tensor of a CUDA device. Returns false
  // if it must be read another way.
  bool ReduceOnDevice(PyObject* tensor, ReadMode mode, int cuda_device,
                      PyTensorView* out) const;
  // Sets what identifies the content of the tensor, if it has a version; `out`
  // must have address and dtype.
  void Identify(PyObject* tensor, uint64_t* token, uint64_t* version,
                const PyTensorView& out) const;
  bool ReadDescribed(PyObject* tensor, ReadMode mode, PyTensorView* out) const;
  PyValue ReadValue(PyObject* object, ReadMode mode, const char* keyword,
                    ReadBudget* budget) const;
  PyValue ReadList(PyObject* object, ReadMode mode, ReadBudget* budget) const;
  PyValue ReadDict(PyObject* object, ReadMode mode, ReadBudget* budget) const;
  PyValue ReadOther(PyObject* object, ReadMode mode, const char* keyword,
                    ReadBudget* budget) const;

  const TorchBindings* const torch_;
  StorageTokens* const tokens_;
};

// Bytes of host memory that Fill reads at most.
uint64_t BytesOf(const PyValue& value);
uint64_t BytesOf(const std::vector<PyValue>& values);

// Removes the statistics and data of the tensors; keeps dtype and shape.
void ForgetNumbers(PyValue* value);

// Does not need the GIL.
void Fill(CallBuilder& builder, const PyValue& value, v1::Value* out);
void FillList(CallBuilder& builder, const std::vector<PyValue>& values,
              v1::ValueList* out);
// Fills in the items of a kMap with their names.
void FillMap(CallBuilder& builder, const PyValue& values, v1::ValueMap* out);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PY_VALUE_H_
