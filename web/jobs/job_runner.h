// SPDX-License-Identifier: Apache-2.0
// Jobs of the page: commands of `rankprobe`, each in its own process, so that
// its cost and its failures do not affect the page. A limited number runs at a
// time and the rest waits. The results of each job stay in its directory until
// the runner ends, or until the number of kept jobs is reached and the oldest
// is removed.
//
// A job reads the archive as the user who started this process; the collector
// decides what that user may. It writes below its directory and nowhere else.
// Thread-safe. Failures of a job are in its JobInfo.
#ifndef RANKPROBE_WEB_JOBS_JOB_RUNNER_H_
#define RANKPROBE_WEB_JOBS_JOB_RUNNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/jobs.pb.h"
#include "web/http/http_message.h"
#include "web/jobs/child_process.h"
#include "web/jobs/job_commands.h"

namespace rankprobe {

// Gets a run of the archive into JobDump.path, until `cancelled`: CANCELLED.
// Blocks. Returns what the command is given in the place of that path: it, or a
// directory below it. RESOURCE_EXHAUSTED beyond `max_bytes`.
using FetchJobDump = std::function<absl::StatusOr<std::string>(
    const JobDump& dump, uint64_t max_bytes, std::function<bool()> cancelled)>;

struct JobRunnerOptions {
  // The program `rankprobe`. Empty: there are no jobs.
  std::string program;
  // In front of the command: which collector, with which certificates.
  std::vector<std::string> globals;
  JobSources sources;
  // With Runs::kFetched.
  FetchJobDump fetch;
  // Of `sources.below_root`. Nothing outside it and the job's own directory is
  // read then; empty: there is none.
  std::string root;
  // Where the jobs' directories are made. Empty: TMPDIR, or /tmp.
  std::string directory;
  size_t most_running = 2;
  size_t most_waiting = 16;
  // Ended ones.
  size_t most_kept = 32;
  // What a job may have on disk, and how much room it leaves there.
  uint64_t max_job_bytes = uint64_t{16} << 30;
  uint64_t min_free_bytes = uint64_t{1} << 30;
  // Of all ended ones together; 0: as many as are kept.
  uint64_t max_kept_bytes = 0;
  // Of a job's process; 0: as much as there is.
  uint64_t max_memory_bytes = 0;
  // From its beginning; 0: as long as it takes.
  absl::Duration max_time = absl::ZeroDuration();
  // Of a table that a page looks at; twice that of all in memory.
  uint64_t max_table_bytes = 256 << 20;
  // This process has more important things to do, and secrets: see ChildOptions.
  bool apart = false;
  // An answer of this age is as good as a new one (JobSpec.reuse).
  absl::Duration fresh = absl::Seconds(30);
};

class JobRunner {
 public:
  // Both outlive it.
  JobRunner(JobRunnerOptions options, FileSystem* file_system, Clock* clock);
  JobRunner(const JobRunner&) = delete;
  JobRunner& operator=(const JobRunner&) = delete;
  // Ends what runs, and deletes what the jobs made.
  ~JobRunner();

  // INVALID_ARGUMENT: an invalid job; RESOURCE_EXHAUSTED: too many jobs wait;
  // UNIMPLEMENTED: this server runs no jobs.
  absl::StatusOr<v1::JobInfo> Start(const v1::JobSpec& spec);
  // Starts the job, or uses an equal one, waits for its end and answers as Get.
  // The client of `reply` waits; when the last waiting client disconnects, the
  // job is cancelled.
  absl::StatusOr<v1::JobInfo> Do(const v1::JobSpec& spec, HttpReply* reply);
  v1::JobList List() const;
  // With its report. NOT_FOUND.
  absl::StatusOr<v1::JobInfo> Get(const std::string& id) const;
  // Of one that has ended nothing changes. NOT_FOUND.
  absl::StatusOr<v1::JobInfo> Cancel(const std::string& id);
  // Ends it, and deletes what it made. NOT_FOUND.
  absl::Status Delete(const std::string& id);

  // A file of a job, where it lies; it stays as long as the handle.
  class File {
   public:
    const std::string& path() const { return path_; }

   private:
    friend class JobRunner;
    std::string path_;
    std::shared_ptr<const void> keeps_;
  };
  // Of an ended one. NOT_FOUND; FAILED_PRECONDITION while it is at work.
  absl::StatusOr<File> FindFile(const std::string& id,
                                const std::string& name) const;

 private:
  struct Job;
  using JobPointer = std::shared_ptr<Job>;

  JobPointer Find(const std::string& id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the oldest ended ones off the list; their directories go with the
  // last pointer, which is for the caller to let go without the lock.
  std::vector<JobPointer> Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Work();
  void Run(const JobPointer& job);
  absl::StatusOr<JobPointer> Begin(const v1::JobSpec& spec)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(const JobPointer& job);
  absl::Status Prepare(const JobPointer& job, JobCommand* command);
  bool IsCancelled(const Job& job) const;
  bool Overspends(const Job& job) const;
  v1::JobInfo InfoOf(const Job& job) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::JobInfo WholeInfoOf(const Job& job) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const JobRunnerOptions options_;
  FileSystem* const file_system_;
  Clock* const clock_;
  mutable absl::Mutex mutex_;
  // The oldest first.
  std::vector<JobPointer> jobs_ ABSL_GUARDED_BY(mutex_);
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> workers_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_JOBS_JOB_RUNNER_H_
