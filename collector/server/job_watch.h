// SPDX-License-Identifier: Apache-2.0
// The job that a private collector belongs to, observed through the locks in
// its directory: the supervisor of the collector holds supervisor.lock, the
// processes that record share users.lock (agent/python/rankprobe/embedded.py).
#ifndef RANKPROBE_COLLECTOR_SERVER_JOB_WATCH_H_
#define RANKPROBE_COLLECTOR_SERVER_JOB_WATCH_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"

namespace rankprobe {

// Owns the two open files, and holds neither lock longer than for a check. Used
// by one thread.
class JobWatch {
 public:
  static constexpr int64_t kPatienceNs = int64_t{10} * 1000000000;

  // NOT_FOUND if the directory or one of its locks does not exist; creates
  // nothing.
  static absl::StatusOr<std::unique_ptr<JobWatch>> Open(
      const std::string& directory, const Clock* clock);
  ~JobWatch();

  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

  // Called repeatedly. Returns why no process is left to serve: the directory
  // is being removed, or in all checks of kPatienceNs no process held a lock.
  // Empty: a process may exist.
  std::string Over();

 private:
  JobWatch(int supervisor, int users, const Clock* clock)
      : supervisor_(supervisor), users_(users), clock_(clock) {}

  const int supervisor_;
  const int users_;
  const Clock* const clock_;
  // Time of the first of the consecutive checks that found no process; -1:
  // none.
  int64_t alone_since_ns_ = -1;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_JOB_WATCH_H_
