// SPDX-License-Identifier: Apache-2.0
// ReadingScope: a part of a recorded call in which the memory of values that
// were read is summarised.
//
// It releases the GIL, except where that would take longer than the summary: if
// the values have little memory, and no work of the call can wait. Ownership:
// on the stack. Threads: the GIL is held on entry. Never fails.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_READING_SCOPE_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_READING_SCOPE_H_

#include <Python.h>

#include <cstdint>

#include "agent/runtime/recorder/recorder.h"

namespace rankprobe {

class ReadingScope {
 public:
  // `bytes`: BytesOf the values.
  ReadingScope(const CallRecorder& calls, RecordedCall::Needs needs,
               uint64_t bytes)
      // Checksums take longer; payloads wait for room, as records that are due.
      : thread_(needs == RecordedCall::Needs::kNumbers &&
                        bytes <= kLittleBytes && !calls.Due()
                    ? nullptr
                    : PyEval_SaveThread()) {}
  ~ReadingScope() {
    if (thread_ != nullptr) PyEval_RestoreThread(thread_);
  }
  ReadingScope(const ReadingScope&) = delete;
  ReadingScope& operator=(const ReadingScope&) = delete;

  // Whether the recorder may wait: no other thread of Python is kept waiting.
  bool may_wait() const { return thread_ != nullptr; }

 private:
  // Read in some microseconds.
  static constexpr uint64_t kLittleBytes = 32 << 10;

  PyThreadState* const thread_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_READING_SCOPE_H_
