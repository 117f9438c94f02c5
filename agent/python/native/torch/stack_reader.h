// SPDX-License-Identifier: Apache-2.0
// The Python stack of the caller as lines of stack.json. Frames of rankprobe
// and frames without a source line are left out. A line is made once for each
// (code, instruction). Guarded by the GIL.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_STACK_READER_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_STACK_READER_H_

#include <Python.h>
// After Python.h.
#include <frameobject.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "agent/python/native/torch/torch_bindings.h"

namespace rankprobe {

class StackReader {
 public:
  // `skipped_directory`: frames of files below it are left out.
  StackReader(const TorchBindings* torch, std::string skipped_directory)
      : torch_(torch), skipped_directory_(std::move(skipped_directory)) {}

  struct Stack {
    // Innermost first.
    std::vector<std::string> frames;
    // Identifies these frames, from 1.
    uint64_t number = 0;
  };

  // Returns the stack of the caller; valid until the next Clear().
  const Stack& Read();
  // Called between steps: bounds the memory.
  void Clear();

 private:
  struct Line {
    PyRef code;  // keeps the address from being used again
    std::string text;
    bool dropped = false;
  };
  const Line* LineOf(PyCodeObject* code, PyFrameObject* frame);

  const TorchBindings* const torch_;
  const std::string skipped_directory_;
  // Lines by code and instruction.
  absl::node_hash_map<std::pair<PyCodeObject*, int>, Line> lines_;
  absl::node_hash_map<std::vector<const Line*>, Stack> stacks_;
  uint64_t last_number_ = 0;
  const Line unread_{.dropped = true};
  std::vector<const Line*> key_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_STACK_READER_H_
