// SPDX-License-Identifier: Apache-2.0
// Forwards of hooked modules that have begun and not ended, and what the hooks
// around them do.
//
// Ownership: held by the Python hooks of one debugger; owns a share of the
// Capture, and of each module whose forward is open. Threads: the GIL is held;
// open forwards are by thread. Failure: a fault of ours is thrown to the hook,
// which reports it, when what was begun is on the list of what is open; an
// error of the model passes through the hooks, which never see it.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_MODULE_FORWARDS_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_MODULE_FORWARDS_H_

#include <pybind11/pybind11.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/python/native/session/py_ref.h"
#include "agent/python/native/torch/capture.h"
#include "agent/python/native/torch/module_gradients.h"

namespace rankprobe {

class ModuleForwards {
 public:
  // wanting(value) -> the tensors of nested containers that require a gradient,
  // a tuple; parameters(module) -> its own by name: asked where they are not
  // plain, which is rare.
  ModuleForwards(std::shared_ptr<Capture> capture, PyRef wanting,
                 PyRef parameters);

  // A forward begins. with_gradients: those of the call are wanted as far as the
  // filters and the autograd mode have any. Whether it is recorded.
  bool Begin(const std::string& name, const pybind11::object& module,
             const pybind11::tuple& args, const pybind11::object& kwargs,
             bool with_gradients);
  // One of compiled code begins, which Capture was told of by the caller, and
  // whose gradients are found otherwise.
  void Push(const pybind11::object& module, std::optional<ModuleCall> call);

  // The forward of `module` ends, and those that an exception has left open
  // inside. The name of its call if it changed an input in place so that the
  // gradient is lost; else None.
  pybind11::object End(const pybind11::object& module,
                       const pybind11::object& output);
  // An exception ends it; stopped: that of a recomputation, which has what it
  // needs.
  void Abandon(const pybind11::object& module, bool stopped);

  // This thread's open forwards are forgotten.
  void Clear() { open_.erase(std::this_thread::get_id()); }

 private:
  struct Open {
    PyRef module;
    std::optional<ModuleCall> call;
    std::unique_ptr<ModuleGradients> gradients;
  };

  Open Take(const pybind11::object& module);
  pybind11::tuple Wanting(const pybind11::object& value) const;
  pybind11::dict Parameters(const pybind11::object& module) const;

  const std::shared_ptr<Capture> capture_;
  const PyRef wanting_, parameters_;
  // Threads without any are not listed.
  std::map<std::thread::id, std::vector<Open>> open_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_MODULE_FORWARDS_H_
