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
  // `torch` outlives it.
  explicit BegunBackwards(const TorchBindings* torch) : torch_(torch) {}

  void Begin(const std::shared_ptr<CallGradients>& gradients);
  // Something runs that was made at `order`.
  void EndAfter(uint64_t order);
  // A forward begins in mid-pass, a recomputation: what is complete has ended.
  void EndComplete();
  // The pass of that thread has ended.
  void EndAll(std::thread::id thread);
  // Of every thread.
  void EndEverywhere();
  void Ended(const CallGradients* gradients);
  bool empty() const { return begun_.empty(); }

  // Numbers what is made: module calls' begins and ends, API calls' ends.
  uint64_t NextOrder() { return ++order_; }
  // Number of the backward pass that runs; 0 where PyTorch has none.
  int64_t Pass() const;
  // Only graphs hold the accumulator of a leaf, and the graph that needs it may
  // not exist yet.
  void KeepForStep(PyRef node) { kept_.push_back(std::move(node)); }
  // Forgets what a pass that raised has left.
  void BeginStep();

 private:
  using List = std::vector<std::shared_ptr<CallGradients>>;
  template <typename Wanted>
  void End(std::thread::id thread, const Wanted& wanted);

  const TorchBindings* const torch_;
  std::map<std::thread::id, List> begun_;
  std::vector<PyRef> kept_;
  uint64_t order_ = 0;
  // The last pass that was asked to call at its end.
  int64_t asked_pass_ = -1;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_BEGUN_BACKWARDS_H_
