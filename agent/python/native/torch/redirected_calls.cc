// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/redirected_calls.h"

#include <utility>

namespace rankprobe {

void RedirectedCalls::Add(std::shared_ptr<Redirect> redirect,
                          PyObject* target) {
  if (auto* const function = dynamic_cast<CallRedirect*>(redirect.get()))
    return c_functions_.Add(function, target);
  if (auto function = std::dynamic_pointer_cast<FunctionRedirect>(redirect))
    return functions_.Add(std::move(function), target);
  calls_.push_back({std::move(redirect), PyRef::Share(target)});
}

void RedirectedCalls::Put() {
  c_functions_.Put();
  functions_.Put();
  for (const Call& call : calls_) call.redirect->Put(call.target.get());
}

void RedirectedCalls::Take() {
  c_functions_.Take();
  functions_.Take();
  for (const Call& call : calls_) call.redirect->Take(call.target.get());
}

}  // namespace rankprobe
