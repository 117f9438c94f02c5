// SPDX-License-Identifier: Apache-2.0
// Scopes of a thread around code of rankprobe, and the guards of the framework
// that a QuietScope needs.
//
// Ownership: scopes are on the stack, or the QuietGuards' if Python entered
// them; the guards are the Capture's. Threads: the GIL is held. Never fails:
// where the framework has no guard, its modes see rankprobe's calls.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_QUIET_SCOPE_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_QUIET_SCOPE_H_

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "agent/python/native/torch/torch_bindings.h"

namespace rankprobe {

// While an object of this class exists on a thread, no API call on it is
// recorded.
class CallScope {
 public:
  CallScope();
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  static bool Active();
};

class QuietGuards;

// A CallScope around code of rankprobe only. Its calls on tensors are not calls
// of the program, so no __torch_function__ of a class or a mode sees them.
class QuietScope {
 public:
  explicit QuietScope(QuietGuards& guards);
  ~QuietScope();
  QuietScope(const QuietScope&) = delete;
  QuietScope& operator=(const QuietScope&) = delete;

 private:
  const CallScope scope_;
  QuietGuards& guards_;
  // Empty inside another scope.
  PyRef guard_, modes_;
};

class QuietGuards {
 public:
  // `torch` must outlive this object.
  explicit QuietGuards(const TorchBindings* torch) : torch_(torch) {}

  // Enters and leaves a QuietScope around Python code; scopes nest.
  void Enter();
  void Leave();

 private:
  friend class QuietScope;

  // Returns an idle guard; null if the framework has none. See
  // TorchBindings::disable_torch_function.
  PyRef Take();

  const TorchBindings* const torch_;
  // Guards that no scope uses.
  std::vector<PyRef> idle_;
  // Scopes by thread; a scope is left on the thread that entered it.
  std::vector<std::pair<std::thread::id, std::unique_ptr<QuietScope>>> entered_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_QUIET_SCOPE_H_
