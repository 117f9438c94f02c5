// SPDX-License-Identifier: Apache-2.0
// A Python process that does the part of a verb that needs Python's libraries.
// Ownership: the caller that started it; the destructor waits for the process.
// Threads: one.
// Failure: INVALID_ARGUMENT where there is no such Python.
#ifndef RANKPROBE_CLI_CLIENT_PYTHON_WORKER_H_
#define RANKPROBE_CLI_CLIENT_PYTHON_WORKER_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rankprobe {

class PythonWorker {
 public:
  enum class Input {
    kOurs,  // the standard input of this process
    kPipe   // what Write says
  };
  // `python -m module arguments..`, the Python of RANKPROBE_PYTHON, else
  // python3. `needs`: what of it, for the message: "acc_check needs Python with
  // torch".
  static absl::StatusOr<std::unique_ptr<PythonWorker>> Start(
      const std::string& module, const std::vector<std::string>& arguments,
      absl::string_view needs, Input input);
  PythonWorker(const PythonWorker&) = delete;
  PythonWorker& operator=(const PythonWorker&) = delete;
  ~PythonWorker();

  // All of it, to its standard input. CANCELLED: it reads no more.
  absl::Status Write(absl::string_view bytes);
  // Ends its input. Its exit status, as shells say it.
  absl::StatusOr<int> Wait();

 private:
  PythonWorker(pid_t pid, int input) : pid_(pid), input_(input) {}
  void CloseInput();

  pid_t pid_;
  int input_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_PYTHON_WORKER_H_
