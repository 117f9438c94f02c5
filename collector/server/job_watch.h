// SPDX-License-Identifier: Apache-2.0
// The job that a private collector belongs to, seen through the locks in its
// directory: who keeps the collector holds supervisor.lock, the processes that
// record share users.lock (agent/python/rankprobe/embedded.py).
#ifndef RANKPROBE_COLLECTOR_SERVER_JOB_WATCH_H_
#define RANKPROBE_COLLECTOR_SERVER_JOB_WATCH_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"

namespace rankprobe {

// Owns the two open files, takes neither lock for longer than a look. From one
// thread.
class JobWatch {
 public:
  static constexpr int64_t kPatienceNs = int64_t{10} * 1000000000;

  // NOT_FOUND: the directory or a lock of it is not there, and nothing was
  // made.
  static absl::StatusOr<std::unique_ptr<JobWatch>> Open(
      const std::string& directory, const Clock* clock);
  ~JobWatch();

  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

  // To be asked again and again. Why there is nobody left to serve: the
  // directory is being removed, or in all looks of kPatienceNs nobody held a
  // lock. Empty: somebody may be there.
  std::string Over();

 private:
  JobWatch(int supervisor, int users, const Clock* clock)
      : supervisor_(supervisor), users_(users), clock_(clock) {}

  const int supervisor_;
  const int users_;
  const Clock* const clock_;
  // Of the first look that found nobody, since somebody was seen; -1: none.
  int64_t alone_since_ns_ = -1;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_JOB_WATCH_H_
