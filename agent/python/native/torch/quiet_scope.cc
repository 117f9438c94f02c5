// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/quiet_scope.h"

#include <algorithm>

#include "agent/python/native/torch/program_error.h"

namespace rankprobe {
namespace {

thread_local int call_depth = 0;
thread_local bool is_quiet = false;

}  // namespace

CallScope::CallScope() { ++call_depth; }
CallScope::~CallScope() { --call_depth; }
bool CallScope::Active() { return call_depth > 0; }

QuietScope::QuietScope(QuietGuards& guards) : guards_(guards) {
  if (is_quiet) return;
  const TorchBindings& t = *guards.torch_;
  const SavedError saved;
  guard_ = guards.Take();
  if (guard_) {
    const PyRef entered = TorchBindings::Call(t.guard_enter, guard_.get());
    if (!entered) guard_ = PyRef();
  }
  is_quiet = static_cast<bool>(guard_);
  if (is_quiet && t.modes_aside)
    modes_ = PyRef::Steal(PyObject_CallNoArgs(t.modes_aside.get()));
  ClearOwnError();
}

QuietScope::~QuietScope() {
  if (!guard_) return;
  const TorchBindings& t = *guards_.torch_;
  const SavedError saved;
  if (modes_) {
    const PyRef back =
        PyRef::Steal(PyObject_CallOneArg(t.modes_back.get(), modes_.get()));
  }
  const PyRef left = TorchBindings::Exit(t.guard_exit, guard_.get());
  is_quiet = false;
  ClearOwnError();
  guards_.idle_.push_back(std::move(guard_));
}

PyRef QuietGuards::Take() {
  if (idle_.empty()) {
    return torch_->disable_torch_function
               ? PyRef::Steal(
                     PyObject_CallNoArgs(torch_->disable_torch_function.get()))
               : PyRef();
  }
  PyRef guard = std::move(idle_.back());
  idle_.pop_back();
  return guard;
}

void QuietGuards::Enter() {
  entered_.emplace_back(std::this_thread::get_id(),
                        std::make_unique<QuietScope>(*this));
}

void QuietGuards::Leave() {
  const auto at = std::find_if(
      entered_.rbegin(), entered_.rend(),
      [](auto& entry) { return entry.first == std::this_thread::get_id(); });
  if (at == entered_.rend()) return;
  const std::unique_ptr<QuietScope> ended = std::move(at->second);
  entered_.erase(std::next(at).base());
}

}  // namespace rankprobe
