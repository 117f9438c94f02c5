// One Python argument, output or nested element, read with the GIL held into
// plain data that can be recorded without it.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_PY_VALUE_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_PY_VALUE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "agent/python/native/torch_bindings.h"
#include "agent/runtime/recorder.h"

namespace rankprobe {

// A tensor as memory. `keep` owns that memory.
struct PyTensorView {
  PyRef keep;
  uintptr_t address = 0;
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  bool requires_grad = false;
  // No bytes to read (meta, fake, sparse): `summary` says all.
  bool no_data = false;
  absl::InlinedVector<int64_t, 6> shape, strides;
  TensorIdentity identity;
  // Set for what is not a plain torch.Tensor; its fields beat those above.
  std::unique_ptr<v1::TensorSummary> summary;
};

struct PyValue {
  enum class Kind { kNull, kTensor, kLeaf, kList, kMap, kP2p };
  Kind kind = Kind::kNull;
  std::unique_ptr<PyTensorView> tensor;
  std::unique_ptr<v1::Value> leaf;
  std::vector<PyValue> items;
  std::vector<std::string> names;
};

// Which memory is the same as seen before. A storage is known by its address
// for as long as a tensor seen in it lives; the token names that life.
// Guarded by the GIL.
class StorageTokens {
 public:
  uint64_t Token(uintptr_t storage, PyObject* tensor, const TorchBindings& t);
  // Somebody may have written there without telling the version counter.
  void Forget(uintptr_t storage) { lives_.erase(storage); }
  void Clear() { lives_.clear(); }

 private:
  struct Life {
    PyRef weak;
    uint64_t token = 0;
  };
  absl::flat_hash_map<uintptr_t, Life> lives_;
  uint64_t next_ = 1;
};

class ValueReader {
 public:
  ValueReader(const TorchBindings* torch, StorageTokens* tokens)
      : torch_(torch), tokens_(tokens) {}

  // `keyword`: the name of the keyword argument, or null. `reuse`: a summary
  // of the same bytes may be used again.
  PyValue Read(PyObject* object, const char* keyword = nullptr, int depth = 0,
               bool reuse = true) const;
  // Any tuple as a list, named or not.
  PyValue ReadItems(PyObject* tuple) const;
  // Storage of a plain CPU tensor; 0: not known.
  uintptr_t Storage(PyObject* tensor) const;

 private:
  PyValue ReadTensor(PyObject* tensor, bool reuse) const;
  bool ReadPlain(PyObject* tensor, bool reuse, PyTensorView* out) const;
  bool ReadDescribed(PyObject* tensor, PyTensorView* out) const;
  PyValue ReadOther(PyObject* object, const char* keyword, int depth,
                    bool reuse) const;

  const TorchBindings* const torch_;
  StorageTokens* const tokens_;
};

// Runs without the GIL.
void Fill(CallBuilder& builder, const PyValue& value, v1::Value* out);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_PY_VALUE_H_
