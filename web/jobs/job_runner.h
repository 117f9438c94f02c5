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

// Fetches a run of the archive into JobDump.path. Blocks; returns CANCELLED
// once `cancelled` returns true, and RESOURCE_EXHAUSTED beyond `max_bytes`.
// Returns the path that the command gets instead: JobDump.path or a directory
// below it.
using FetchJobDump = std::function<absl::StatusOr<std::string>(
    const JobDump& dump, uint64_t max_bytes, std::function<bool()> cancelled)>;

struct JobRunnerOptions {
  // The program `rankprobe`. If empty, there are no jobs.
  std::string program;
  // Words before the command that select the collector and its certificates.
  std::vector<std::string> globals;
  JobSources sources;
  // Used with Runs::kFetched.
  FetchJobDump fetch;
  // The root of `sources.below_root`. If set, a job reads only below it and its
  // own directory. Empty if there is none.
  std::string root;
  // Parent of the jobs' directories. If empty, TMPDIR or /tmp.
  std::string directory;
  size_t most_running = 2;
  size_t most_waiting = 16;
  // Limit for ended jobs.
  size_t most_kept = 32;
  // Disk space that a job may use, and that it must leave free.
  uint64_t max_job_bytes = uint64_t{16} << 30;
  uint64_t min_free_bytes = uint64_t{1} << 30;
  // Limit for all ended jobs together; 0 means no limit besides `most_kept`.
  uint64_t max_kept_bytes = 0;
  // Memory limit of a job's process; 0 means none.
  uint64_t max_memory_bytes = 0;
  // Time limit from its start; 0 means none.
  absl::Duration max_time = absl::ZeroDuration();
  // Size limit of a table that a page reads; all tables in memory may have
  // twice this size.
  uint64_t max_table_bytes = 256 << 20;
  // For a process with more important work and with secrets: see ChildOptions.
  bool apart = false;
  // An answer that is at most this old may be reused (JobSpec.reuse).
  absl::Duration fresh = absl::Seconds(30);
};

class JobRunner {
 public:
  // `file_system` and `clock` outlive the runner.
  JobRunner(JobRunnerOptions options, FileSystem* file_system, Clock* clock);
  JobRunner(const JobRunner&) = delete;
  JobRunner& operator=(const JobRunner&) = delete;
  // Ends running jobs and deletes all their files.
  ~JobRunner();

  // Starts a job. Returns INVALID_ARGUMENT for an invalid job,
  // RESOURCE_EXHAUSTED if too many jobs wait, UNIMPLEMENTED if this server runs
  // no jobs.
  absl::StatusOr<v1::JobInfo> Start(const v1::JobSpec& spec);
  // Starts the job or uses an equal one, waits for its end and returns the
  // result of Get. The client of `reply` waits; when the last waiting client
  // disconnects, the job is cancelled.
  absl::StatusOr<v1::JobInfo> Do(const v1::JobSpec& spec, HttpReply* reply);
  v1::JobList List() const;
  // Returns the job with its report, or NOT_FOUND.
  absl::StatusOr<v1::JobInfo> Get(const std::string& id) const;
  // Cancels a job; an ended job is not changed. Returns NOT_FOUND if there is
  // none.
  absl::StatusOr<v1::JobInfo> Cancel(const std::string& id);
  // Ends a job and deletes its files. Returns NOT_FOUND if there is none.
  absl::Status Delete(const std::string& id);

  // A file of a job, which exists as long as this handle.
  class File {
   public:
    const std::string& path() const { return path_; }

   private:
    friend class JobRunner;
    std::string path_;
    std::shared_ptr<const void> keeps_;
  };
  // Returns a file of an ended job. Returns NOT_FOUND, or FAILED_PRECONDITION
  // while the job runs.
  absl::StatusOr<File> FindFile(const std::string& id,
                                const std::string& name) const;

 private:
  struct Job;
  using JobPointer = std::shared_ptr<Job>;

  JobPointer Find(const std::string& id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the oldest ended jobs from the list. Their directories are deleted
  // with the last pointer, which the caller must release without holding the
  // lock.
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
