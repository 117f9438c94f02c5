// SPDX-License-Identifier: Apache-2.0
// Redirects calls by setting the attribute host.name to the target: for
// functions whose calls cannot be redirected, and for those whose names are
// recorded separately. If the program sets the attribute in the meantime, its
// value stays.
//
// Threads: the GIL is held. Failure: an error, such as that of a read-only
// namespace, is cleared, and the attribute keeps its value.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PLACE_REDIRECT_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PLACE_REDIRECT_H_

#include <Python.h>

#include <utility>

#include "agent/python/native/session/py_ref.h"
#include "agent/python/native/torch/redirect.h"

namespace rankprobe {

class PlaceRedirect : public Redirect {
 public:
  // `original`: the current value of host.name, inherited or not.
  PlaceRedirect(PyRef host, PyRef name, PyRef original)
      : host_(std::move(host)),
        name_(std::move(name)),
        original_(std::move(original)),
        own_(Now()) {}

  PyObject* original() const override { return original_.get(); }
  void Put(PyObject* target) override;
  void Take(PyObject* target) override;

 private:
  // Null if the attribute is inherited.
  PyRef Now() const;
  void Set(PyObject* value) const;

  const PyRef host_, name_, original_, own_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PLACE_REDIRECT_H_
