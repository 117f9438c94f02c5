// SPDX-License-Identifier: Apache-2.0
// A child process that writes to two pipes. One thread owns it; Stop may be
// called by any thread.
#ifndef RANKPROBE_WEB_JOBS_CHILD_PROCESS_H_
#define RANKPROBE_WEB_JOBS_CHILD_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace rankprobe {

struct ChildOptions {
  // "NAME=VALUE": replace variables of this process.
  std::vector<std::string> variables;
  // Set if the environment of this process contains secrets: the child then
  // gets only PATH, HOME and LANG besides `variables`.
  bool clean_environment = false;
  // If memory runs out, the kernel kills the child before this process.
  bool first_to_go = false;
};

class ChildProcess {
 public:
  // Starts the program in its own process group, at nice 10, without standard
  // input, without blocked signals and without this process's descriptors.
  // Returns RESOURCE_EXHAUSTED if it cannot be started.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      const std::string& program, const std::vector<std::string>& arguments,
      const ChildOptions& options);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  // Kills the process if it is still running.
  ~ChildProcess();

  // Reads the output until the process ends; `error` is true for standard
  // error. Calls `tick` about once a second. Returns the exit status, or 128 +
  // N for signal N.
  int Wait(const std::function<void(bool error, absl::string_view)>& on_text,
           const std::function<void()>& tick);
  // Returns its resident memory, or 0 if it has ended or the size is unknown.
  // Called by the owning thread.
  uint64_t ResidentBytes() const;
  // Asks the process to end, and kills it some seconds later. May be called
  // again.
  void Stop();

 private:
  ChildProcess(pid_t pid, int out, int err) : pid_(pid), fds_{out, err} {}
  void Signal(int signal);

  const pid_t pid_;
  int fds_[2];
  absl::Mutex mutex_;
  // Set once the process was waited for; its id may then belong to another
  // process.
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_JOBS_CHILD_PROCESS_H_
