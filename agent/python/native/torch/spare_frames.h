// SPDX-License-Identifier: Apache-2.0
// Frames of Python that a thread may have beyond its recursion limit.
//
// PyTorch runs a module with hooks in one frame more than one without: a model
// that is nested as deep as the limit allows must not fail for that.
// sys.getrecursionlimit() stays what it is. Ownership: none of the thread.
// Threads: the GIL is held; frames are given back by the thread that has them.
// No failure.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_SPARE_FRAMES_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_SPARE_FRAMES_H_

#include <Python.h>

namespace rankprobe {

class SpareFrames {
 public:
  explicit SpareFrames(int count)
      : thread_(PyThreadState_Get()), count_(count) {
    Give(count_);
  }
  SpareFrames(SpareFrames&& other) noexcept
      : thread_(other.thread_), count_(other.count_) {
    other.count_ = 0;
  }
  SpareFrames(const SpareFrames&) = delete;
  SpareFrames& operator=(const SpareFrames&) = delete;
  SpareFrames& operator=(SpareFrames&&) = delete;
  ~SpareFrames() {
    if (count_ != 0 && thread_ == PyThreadState_Get()) Give(-count_);
  }

 private:
  void Give(int count) const {
#if PY_VERSION_HEX >= 0x030C0000
    thread_->py_recursion_remaining += count;
#elif PY_VERSION_HEX >= 0x030B0000
    thread_->recursion_remaining += count;
#else
    thread_->recursion_depth -= count;
#endif
  }

  // Only compared, not dereferenced, unless it is current: the thread may have
  // ended.
  PyThreadState* const thread_;
  int count_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_SPARE_FRAMES_H_
