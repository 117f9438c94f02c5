// SPDX-License-Identifier: Apache-2.0
// L1 of a C++ program: watches ATen calls through RecordFunction. Only the
// outermost call of a thread is recorded; calls inside backward nodes are not.
// The backward of a call comes from a post hook on its output's autograd node.
//
// Ownership: by the debugger, whose recorder and adapter outlive it and every
// hook it leaves in the graph (shared). Threads: callbacks on any thread.
// Failure: c10 and other exceptions stay inside and are reported as faults.
#ifndef RANKPROBE_AGENT_LIBTORCH_ATEN_OBSERVER_H_
#define RANKPROBE_AGENT_LIBTORCH_ATEN_OBSERVER_H_

#include <ATen/record_function.h>

#include <memory>
#include <optional>

#include "agent/libtorch/hook_context.h"

namespace rankprobe {

class AtenObserver {
 public:
  explicit AtenObserver(std::shared_ptr<HookContext> context)
      : context_(std::move(context)) {}
  ~AtenObserver() { Remove(); }

  // Registers the callbacks. Called only while calls are recorded, so that a
  // program that is not being recorded has no cost.
  void Install();
  void Remove();

 private:
  const std::shared_ptr<HookContext> context_;
  std::optional<at::CallbackHandle> handle_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_LIBTORCH_ATEN_OBSERVER_H_
