// SPDX-License-Identifier: Apache-2.0
// State shared by the hooks and the debugger. Ownership: shared; hooks may
// outlive the debugger in the graph. Thread-safe: recorder, adapter and the two
// lists each have a lock.
#ifndef RANKPROBE_AGENT_LIBTORCH_HOOK_CONTEXT_H_
#define RANKPROBE_AGENT_LIBTORCH_HOOK_CONTEXT_H_

#include <torch/torch.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "agent/libtorch/tensor_adapter.h"
#include "agent/runtime/recorder/recorder.h"

namespace rankprobe {

// Tensor hooks on leaves. A leaf keeps its hooks as long as the program keeps
// the leaf, so they are removed at the end of the step.
class LeafHooks {
 public:
  void Add(const at::Tensor& leaf, unsigned position) {
    const std::lock_guard<std::mutex> lock(mutex_);
    hooks_.emplace_back(leaf.getIntrusivePtr(), position);
  }
  // Must not be called inside a backward.
  void RemoveAll() {
    std::vector<Hook> hooks;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      hooks.swap(hooks_);
    }
    for (Hook& hook : hooks) {
      // Locking gives a reference only while the leaf exists.
      if (auto leaf = hook.first.lock())
        at::Tensor(std::move(leaf)).remove_hook(hook.second);
    }
  }

 private:
  using Hook = std::pair<
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>,
      unsigned>;
  std::mutex mutex_;
  std::vector<Hook> hooks_;
};

struct HookContext {
  std::shared_ptr<Recorder> recorder;
  TensorAdapter adapter;
  LeafHooks leaf_hooks;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_LIBTORCH_HOOK_CONTEXT_H_
