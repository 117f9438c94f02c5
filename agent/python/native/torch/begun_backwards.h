// SPDX-License-Identifier: Apache-2.0
// Backwards of modules that have begun and not ended, by thread, and the order
// in which forwards and backwards were made.
//
// The engine runs the nodes of a thread from the last made to the first. So a
// call's nodes have all run when something runs that was made before it, which
// is where the backward of the module ends.
//
// Ownership: the Capture's. Threads: the GIL is held. Failure: a Python error
// is thrown; what ends a backward reports its own.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_BEGUN_BACKWARDS_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_BEGUN_BACKWARDS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "agent/python/native/torch/torch_bindings.h"

namespace rankprobe {

struct CallGradients;

class BegunBackwards {
 public:
  // `torch` must outlive this object.
  explicit BegunBackwards(const TorchBindings* torch) : torch_(torch) {}

  void Begin(const std::shared_ptr<CallGradients>& gradients);
  // Something runs that was made at `order`: ends the backwards that are over.
  void EndAfter(uint64_t order);
  // A forward begins during a pass (a recomputation): ends complete backwards.
  void EndComplete();
  // The pass of that thread has ended: ends its backwards.
  void EndAll(std::thread::id thread);
  // Ends the backwards of all threads.
  void EndEverywhere();
  void Ended(const CallGradients* gradients);
  bool empty() const { return begun_.empty(); }

  // Numbers in order the begins and ends of module calls, and the ends of API
  // calls.
  uint64_t NextOrder() { return ++order_; }
  // Number of the running backward pass; 0 if PyTorch does not number them.
  int64_t Pass() const;
  // Keeps the accumulator of a leaf alive until the end of the step: only
  // graphs hold it, and the graph that needs it may not exist yet.
  void KeepForStep(PyRef node) { kept_.push_back(std::move(node)); }
  // Forgets the backwards of a pass that raised.
  void BeginStep();

 private:
  using List = std::vector<std::shared_ptr<CallGradients>>;
  template <typename Wanted>
  void End(std::thread::id thread, const Wanted& wanted);

  const TorchBindings* const torch_;
  std::map<std::thread::id, List> begun_;
  std::vector<PyRef> kept_;
  uint64_t order_ = 0;
  // The last pass for which a callback at its end was queued.
  int64_t asked_pass_ = -1;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_BEGUN_BACKWARDS_H_
