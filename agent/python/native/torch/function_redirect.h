// SPDX-License-Identifier: Apache-2.0
// Redirects the calls of a Python function by replacing its __code__ while a
// target is set. inspect finds the signature and the source of the function
// through `__wrapped__`. If the program assigns another __code__ in the
// meantime, that one stays.
//
// Threads: the GIL is held. Failure: an error of rankprobe is cleared, and the
// calls are not redirected.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_FUNCTION_REDIRECT_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_FUNCTION_REDIRECT_H_

#include <Python.h>

#include <memory>
#include <utility>
#include <vector>

#include "agent/python/native/session/py_ref.h"
#include "agent/python/native/torch/redirect.h"

namespace rankprobe {

// Gives the Python function `to` the defaults of the Python function `from`.
// Returns false with an exception if that fails.
bool CopyDefaults(PyObject* from, PyObject* to);

class FunctionRedirect : public Redirect {
 public:
  // `original`: a function with the same code, which is never redirected.
  // make_code(target, own) returns code that calls `target`, for a function
  // whose code is `own`; `file` is the co_filename of all code that it returns.
  FunctionRedirect(PyRef function, PyRef original, PyRef make_code, PyRef file)
      : function_(std::move(function)),
        original_(std::move(original)),
        make_code_(std::move(make_code)),
        file_(std::move(file)) {}

  PyObject* original() const override { return original_.get(); }
  void Put(PyObject* target) override;
  void Take(PyObject* target) override;

 private:
  friend class FunctionRedirects;

  struct Code {
    PyRef target, code;
    // The code that was replaced.
    PyRef own;
  };

  PyFunctionObject* Function() const {
    return reinterpret_cast<PyFunctionObject*>(function_.get());
  }
  bool IsOurs(PyObject* code) const;
  bool SetCode(PyObject* code) const;
  bool RefreshOriginal(PyObject* own);

  const PyRef function_, original_, make_code_, file_;
  // The last replacement, reused in the next step.
  Code made_;
  std::vector<Code> put_;
};

// Redirects of many functions, which are put and taken together. If a function
// has not changed since the last step, Put and Take only exchange its code, for
// the reason that CallRedirects gives. Threads: the GIL is held.
class FunctionRedirects {
 public:
  void Add(std::shared_ptr<FunctionRedirect> redirect, PyObject* target) {
    PyFunctionObject* const function = redirect->Function();
    calls_.push_back({std::move(redirect), PyRef::Share(target), function, {}});
  }
  void Put();
  void Take();

 private:
  // The state in which Put found a function, and the code that it sets.
  struct Seen {
    PyRef own, code, defaults, keyword_defaults;
    // {"__wrapped__": original} if the function has no other attributes.
    PyRef attributes;
    bool is_put = false;
  };
  struct Call {
    std::shared_ptr<FunctionRedirect> redirect;
    PyRef target;
    PyFunctionObject* function;
    Seen seen;

    void Prefetch() const {
      __builtin_prefetch(function, /*rw=*/1);
      __builtin_prefetch(reinterpret_cast<const char*>(function) + 64);
      __builtin_prefetch(seen.own.get(), /*rw=*/1);
      __builtin_prefetch(seen.code.get(), /*rw=*/1);
      __builtin_prefetch(seen.attributes.get(), /*rw=*/1);
    }
  };
  static bool PutSeen(Call* call);
  static bool TakeSeen(Call* call);
  static void Forget(Call* call);
  static void See(Call* call);

  std::vector<Call> calls_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_FUNCTION_REDIRECT_H_
