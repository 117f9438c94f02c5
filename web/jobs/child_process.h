// SPDX-License-Identifier: Apache-2.0
// A program that runs beside this one and writes to two pipes. One thread owns
// it; Stop may come from any.
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
  // "NAME=VALUE": take the place of those of this process.
  std::vector<std::string> variables;
  // This process has secrets in its environment: PATH, HOME and LANG alone are
  // the child's beside `variables`.
  bool clean_environment = false;
  // Where memory runs out, the kernel ends the child and not this process.
  bool first_to_go = false;
};

class ChildProcess {
 public:
  // Begins in a process group of its own, at nice 10, without standard input,
  // without signals blocked and with no descriptor of this process.
  // RESOURCE_EXHAUSTED when it cannot be started.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      const std::string& program, const std::vector<std::string>& arguments,
      const ChildOptions& options);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  // Kills what still runs.
  ~ChildProcess();

  // Reads what it writes until it ends; true: to standard error. Every second
  // or so `tick` is called. Returns its exit status; 128 + N of a signal.
  int Wait(const std::function<void(bool error, absl::string_view)>& on_text,
           const std::function<void()>& tick);
  // Its memory now; 0: it has ended, or the size is unknown. For the owning
  // thread.
  uint64_t ResidentBytes() const;
  // Asks it to end; some seconds later it is killed. May be called again.
  void Stop();

 private:
  ChildProcess(pid_t pid, int out, int err) : pid_(pid), fds_{out, err} {}
  void Signal(int signal);

  const pid_t pid_;
  int fds_[2];
  absl::Mutex mutex_;
  // Once it was waited for, its number may be another's.
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_JOBS_CHILD_PROCESS_H_
