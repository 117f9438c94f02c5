// SPDX-License-Identifier: Apache-2.0
// A Python process for the part of a verb that requires Python's libraries.
// Owned by the caller that started it; the destructor waits for the process.
// Used on one thread. Start returns INVALID_ARGUMENT if there is no such
// Python.
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
    kPipe   // the bytes passed to Write
  };
  // Starts `python -m module arguments..` with the Python of RANKPROBE_PYTHON,
  // else python3. `needs` names the requirement in the error message:
  // "acc_check needs Python with torch".
  static absl::StatusOr<std::unique_ptr<PythonWorker>> Start(
      const std::string& module, const std::vector<std::string>& arguments,
      absl::string_view needs, Input input);
  PythonWorker(const PythonWorker&) = delete;
  PythonWorker& operator=(const PythonWorker&) = delete;
  ~PythonWorker();

  // Writes all bytes to its standard input. Returns CANCELLED if the process no
  // longer reads.
  absl::Status Write(absl::string_view bytes);
  // Closes its standard input, waits, and returns the exit status as a shell
  // reports it.
  absl::StatusOr<int> Wait();

 private:
  PythonWorker(pid_t pid, int input) : pid_(pid), input_(input) {}
  void CloseInput();

  pid_t pid_;
  int input_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_PYTHON_WORKER_H_
