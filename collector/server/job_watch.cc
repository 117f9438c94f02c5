// SPDX-License-Identifier: Apache-2.0
#include "collector/server/job_watch.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

// Returns whether another descriptor holds a lock that `how` conflicts with.
bool Held(int fd, int how) {
  if (::flock(fd, how | LOCK_NB) != 0) return true;
  ::flock(fd, LOCK_UN);
  return false;
}

bool Removed(int fd) {
  struct stat found {};
  return ::fstat(fd, &found) == 0 && found.st_nlink == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobWatch>> JobWatch::Open(
    const std::string& directory, const Clock* clock) {
  int fds[2] = {-1, -1};
  const char* const names[2] = {"supervisor.lock", "users.lock"};
  for (int i = 0; i < 2; ++i) {
    const std::string path = absl::StrCat(directory, "/", names[i]);
    fds[i] = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fds[i] < 0) {
      const int error = errno;
      if (i == 1) ::close(fds[0]);
      return absl::ErrnoToStatus(
          error, absl::StrCat("no job is in ", directory, ": ", names[i],
                              " cannot be opened"));
    }
  }
  return absl::WrapUnique(new JobWatch(fds[0], fds[1], clock));
}

JobWatch::~JobWatch() {
  ::close(supervisor_);
  ::close(users_);
}

std::string JobWatch::Over() {
  if (Removed(supervisor_) || Removed(users_))
    return "the directory of its job is removed";
  // Shared, because other processes check for a supervisor in the same way.
  // Users are checked only if there is none, because that check keeps others
  // from joining.
  if (Held(supervisor_, LOCK_SH) || Held(users_, LOCK_EX)) {
    alone_since_ns_ = -1;
    return "";
  }
  const int64_t now = clock_->MonotonicNanos();
  if (alone_since_ns_ < 0) alone_since_ns_ = now;
  if (now - alone_since_ns_ < kPatienceNs) return "";
  return "its job has ended, and no process uses it";
}

}  // namespace rankprobe
