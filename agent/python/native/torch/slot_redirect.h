// SPDX-License-Identifier: Apache-2.0
// Redirects item assignment of a C type, `Tensor.__setitem__`: the slot of the
// type and of the classes that inherit it, and its slot wrapper. Assigning
// another attribute instead makes CPython look up all slots of all these
// classes, twice in each step. A class that is created while calls are
// redirected inherits the redirected slot until the target is taken.
//
// Threads: the GIL is held. Failure: errors of rankprobe are cleared.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_SLOT_REDIRECT_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_SLOT_REDIRECT_H_

#include <Python.h>

#include <utility>
#include <vector>

#include "agent/python/native/session/py_ref.h"
#include "agent/python/native/torch/redirect.h"

namespace rankprobe {

// Never destroyed.
class SlotRedirect : public Redirect {
 public:
  // Returns null, without an error set, if `function` is not a slot wrapper of
  // item assignment, or if that of another type is already redirected.
  static SlotRedirect* Of(PyObject* function);

  PyObject* original() const override { return original_.get(); }
  void Put(PyObject* target) override;
  void Take(PyObject* target) override;

 private:
  SlotRedirect(PyObject* function, PyRef original, objobjargproc own)
      : function_(PyRef::Share(function)),
        original_(std::move(original)),
        own_(own) {}
  // The only redirection: a slot function cannot determine to which one it
  // belongs.
  static SlotRedirect* one_;
  static int Assign(PyObject* self, PyObject* key, PyObject* value);
  void Set(objobjargproc to) const;

  const PyRef function_, original_;
  const objobjargproc own_;
  std::vector<PyRef> targets_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_SLOT_REDIRECT_H_
