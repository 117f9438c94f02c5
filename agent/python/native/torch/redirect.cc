// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/redirect.h"

namespace rankprobe {

// A training step evicts these objects from the processor's caches. Loading
// them one after the other would take about a millisecond, so the next ones are
// prefetched: first the redirect, then the objects that it points to.
template <typename Fn>
void RedirectedCalls::ForEach(const Fn& fn) const {
  constexpr size_t kAhead = 6, kLine = 64;
  const size_t count = calls_.size();
  for (size_t i = 0; i < count + 2 * kAhead; ++i) {
    if (i < count) {
      const auto* const redirect =
          reinterpret_cast<const char*>(calls_[i].redirect.get());
      __builtin_prefetch(redirect);
      __builtin_prefetch(redirect + kLine);
      __builtin_prefetch(calls_[i].target.get());
    }
    if (i >= kAhead && i < count + kAhead)
      calls_[i - kAhead].redirect->Prefetch();
    if (i >= 2 * kAhead) {
      const Call& call = calls_[i - 2 * kAhead];
      fn(call.redirect.get(), call.target.get());
    }
  }
}

void RedirectedCalls::Put() const {
  ForEach([](Redirect* redirect, PyObject* target) { redirect->Put(target); });
}

void RedirectedCalls::Take() const {
  ForEach([](Redirect* redirect, PyObject* target) { redirect->Take(target); });
}

}  // namespace rankprobe
