// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/begun_backwards.h"

#include <algorithm>
#include <iterator>

#include "agent/python/native/torch/module_gradients.h"

namespace py = pybind11;

namespace rankprobe {

template <typename Wanted>
void BegunBackwards::End(std::thread::id thread, const Wanted& wanted) {
  const auto at = begun_.find(thread);
  if (at == begun_.end()) return;
  List ended;
  const auto rest = std::stable_partition(
      at->second.begin(), at->second.end(),
      [&](const auto& gradients) { return !wanted(*gradients); });
  ended.assign(std::make_move_iterator(rest),
               std::make_move_iterator(at->second.end()));
  at->second.erase(rest, at->second.end());
  if (at->second.empty()) begun_.erase(at);
  // Inner modules end before outer ones.
  std::sort(ended.begin(), ended.end(), [](const auto& a, const auto& b) {
    return a->entered > b->entered;
  });
  for (const auto& gradients : ended) {
    gradients->capture->Quietly("module backward",
                                [&](Recorder&) { gradients->Record(); });
  }
}

void BegunBackwards::Begin(const std::shared_ptr<CallGradients>& gradients) {
  const std::thread::id thread = std::this_thread::get_id();
  List& list = begun_[thread];
  if (list.empty()) {
    const int64_t pass = Pass();
    if (!torch_->graph_task || pass != std::exchange(asked_pass_, pass)) {
      const py::cpp_function end(
          [weak = std::weak_ptr<Capture>(gradients->capture), thread] {
            const std::shared_ptr<Capture> capture = weak.lock();
            if (capture == nullptr) return;
            const QuietScope quiet(capture->quiet());
            capture->backwards().EndAll(thread);
          });
      const PyRef done = PyRef::Steal(
          PyObject_CallOneArg(torch_->queue_callback.get(), end.ptr()));
      if (!done) throw py::error_already_set();
    }
  }
  list.push_back(gradients);
}

void BegunBackwards::EndAfter(uint64_t order) {
  End(std::this_thread::get_id(), [order](const CallGradients& gradients) {
    return gradients.entered > order;
  });
}

void BegunBackwards::EndComplete() {
  End(std::this_thread::get_id(),
      [](const CallGradients& gradients) { return gradients.Complete(); });
}

void BegunBackwards::EndAll(std::thread::id thread) {
  End(thread, [](const CallGradients&) { return true; });
}

void BegunBackwards::EndEverywhere() {
  while (!begun_.empty()) EndAll(begun_.begin()->first);
}

void BegunBackwards::Ended(const CallGradients* gradients) {
  End(std::this_thread::get_id(),
      [gradients](const CallGradients& other) { return &other == gradients; });
}

int64_t BegunBackwards::Pass() const {
  if (!torch_->graph_task) return 0;
  const PyRef pass =
      PyRef::Steal(PyObject_CallNoArgs(torch_->graph_task.get()));
  const int64_t number = pass ? PyLong_AsLongLong(pass.get()) : 0;
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return number;
}

void BegunBackwards::BeginStep() {
  // Emptied before the objects are destroyed, because destructors may run
  // Python code that calls this class again.
  const auto left = std::exchange(begun_, {});
  const std::vector<PyRef> kept = std::exchange(kept_, {});
}

}  // namespace rankprobe
