// SPDX-License-Identifier: Apache-2.0
#include "web/jobs/job_runner.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/monotonic_time.h"
#include "common/base/random_bytes.h"
#include "common/base/status_macros.h"
#include "common/io/scratch_directory.h"
#include "web/jobs/job_files.h"
#include "web/jobs/job_output.h"

namespace rankprobe {
namespace {

constexpr absl::Duration kLookAtDisk = absl::Seconds(2);
constexpr int kPartialExit = 1;

int64_t NowNanos(const Clock& clock) { return absl::ToUnixNanos(clock.Now()); }

bool IsOver(v1::JobState state) {
  return state == v1::JOB_STATE_DONE || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

}  // namespace

// Guarded by the runner's mutex, except const members.
struct JobRunner::Job {
  v1::JobInfo info;
  JobOutput output;
  JobCommand command;
  bool cancelled = false;
  // Number of clients that wait in Do, and whether a user has started the job
  // with Start, too.
  size_t waiting = 0;
  bool kept = false;
  std::string why;
  int64_t ended_ns = 0;  // monotonic
  std::shared_ptr<ChildProcess> child;
  // Deleted with the last reference to its files.
  std::shared_ptr<const ScratchDirectory> directory;
};

JobRunner::JobRunner(JobRunnerOptions options, FileSystem* file_system,
                     Clock* clock)
    : options_(std::move(options)), file_system_(file_system), clock_(clock) {
  if (options_.program.empty()) return;
  for (size_t i = 0; i < options_.most_running; ++i)
    workers_.emplace_back([this] { Work(); });
}

JobRunner::~JobRunner() {
  std::vector<std::shared_ptr<ChildProcess>> children;
  {
    const absl::MutexLock lock(&mutex_);
    ending_ = true;
    for (const JobPointer& job : jobs_) {
      job->cancelled = true;
      if (job->child != nullptr) children.push_back(job->child);
    }
  }
  for (const auto& child : children) child->Stop();
  for (std::thread& worker : workers_) worker.join();
}

absl::StatusOr<v1::JobInfo> JobRunner::Start(const v1::JobSpec& spec) {
  const absl::MutexLock lock(&mutex_);
  RP_ASSIGN_OR_RETURN(const JobPointer job, Begin(spec));
  // A user has started the job and may read it later, so it is kept.
  job->kept = true;
  return InfoOf(*job);
}

absl::StatusOr<v1::JobInfo> JobRunner::Do(const v1::JobSpec& spec,
                                          HttpReply* reply) {
  JobPointer job;
  {
    const absl::MutexLock lock(&mutex_);
    RP_ASSIGN_OR_RETURN(job, Begin(spec));
    ++job->waiting;
  }
  bool left = false;
  reply->OnGone([this, job, &left] {
    left = true;
    Leave(job);
  });
  absl::StatusOr<v1::JobInfo> info;
  {
    const auto over = [&job] { return IsOver(job->info.state()); };
    const absl::MutexLock lock(&mutex_, absl::Condition(&over));
    info = WholeInfoOf(*job);
  }
  // From here on the callback does not run and is not running, so `left` is
  // final and Leave() is called exactly once.
  reply->OnGone(nullptr);
  if (!left) Leave(job);
  return info;
}

void JobRunner::Leave(const JobPointer& job) {
  std::string id;
  {
    const absl::MutexLock lock(&mutex_);
    if (--job->waiting > 0 || job->kept || IsOver(job->info.state())) return;
    id = job->info.id();
  }
  (void)Cancel(id);
}

absl::StatusOr<JobRunner::JobPointer> JobRunner::Begin(
    const v1::JobSpec& spec) {
  if (options_.program.empty())
    return absl::UnimplementedError(
        "this server runs no jobs: start `rankprobe view`, or use the command");
  // Invalid jobs are refused before a directory is created.
  RP_RETURN_IF_ERROR(
      ToCommand(spec, ScratchDirectory::Parent(), options_.sources).status());
  v1::JobSpec same = spec;
  same.clear_reuse();
  if (spec.reuse()) {
    for (const JobPointer& other : jobs_) {
      const bool fresh = !IsOver(other->info.state()) ||
                         (other->info.state() == v1::JOB_STATE_DONE &&
                          absl::Nanoseconds(clock_->MonotonicNanos() -
                                            other->ended_ns) < options_.fresh);
      if (fresh && !other->cancelled &&
          google::protobuf::util::MessageDifferencer::Equals(other->info.spec(),
                                                             same)) {
        return other;
      }
    }
  }
  const auto waiting = absl::c_count_if(jobs_, [](const JobPointer& one) {
    return one->info.state() == v1::JOB_STATE_WAITING;
  });
  if (static_cast<size_t>(waiting) >= options_.most_waiting) {
    return absl::ResourceExhaustedError(absl::StrCat(
        waiting, " jobs wait already: wait for them, or cancel some"));
  }
  auto job = std::make_shared<Job>();
  RP_ASSIGN_OR_RETURN(ScratchDirectory directory,
                      ScratchDirectory::Make(file_system_, options_.directory));
  job->directory =
      std::make_shared<const ScratchDirectory>(std::move(directory));
  RP_ASSIGN_OR_RETURN(
      job->command, ToCommand(spec, job->directory->path(), options_.sources));
  job->info.set_id(
      absl::StrCat(++begun_, "-", absl::BytesToHexString(RandomBytes(4))));
  *job->info.mutable_spec() = same;
  job->info.set_state(v1::JOB_STATE_WAITING);
  job->info.set_command_line(job->command.text);
  job->info.set_created_unix_ns(NowNanos(*clock_));
  jobs_.push_back(job);
  return job;
}

v1::JobList JobRunner::List() const {
  const absl::MutexLock lock(&mutex_);
  v1::JobList list;
  for (auto job = jobs_.rbegin(); job != jobs_.rend(); ++job) {
    *list.add_jobs() = InfoOf(**job);
  }
  list.set_most_running(static_cast<uint32_t>(options_.most_running));
  list.set_most_kept(static_cast<uint32_t>(options_.most_kept));
  return list;
}

absl::StatusOr<v1::JobInfo> JobRunner::Get(const std::string& id) const {
  const absl::MutexLock lock(&mutex_);
  const JobPointer job = Find(id);
  if (job == nullptr) return absl::NotFoundError("there is no such job");
  return WholeInfoOf(*job);
}

v1::JobInfo JobRunner::WholeInfoOf(const Job& job) const {
  v1::JobInfo info = InfoOf(job);
  // The report of a running job is incomplete and cannot be parsed.
  if (IsOver(info.state()))
    info.set_report_json(Shown(job.output.answer(), job.directory->path()));
  return info;
}

absl::StatusOr<v1::JobInfo> JobRunner::Cancel(const std::string& id) {
  std::shared_ptr<ChildProcess> child;
  v1::JobInfo info;
  {
    const absl::MutexLock lock(&mutex_);
    const JobPointer job = Find(id);
    if (job == nullptr) return absl::NotFoundError("there is no such job");
    if (!IsOver(job->info.state())) {
      job->cancelled = true;
      if (job->info.state() == v1::JOB_STATE_WAITING) {
        job->info.set_state(v1::JOB_STATE_CANCELLED);
        job->info.set_ended_unix_ns(NowNanos(*clock_));
      }
      child = job->child;
    }
    info = InfoOf(*job);
  }
  if (child != nullptr) child->Stop();
  return info;
}

absl::Status JobRunner::Delete(const std::string& id) {
  RP_RETURN_IF_ERROR(Cancel(id).status());
  JobPointer gone;  // its directory is deleted without holding the lock
  const absl::MutexLock lock(&mutex_);
  const auto job = absl::c_find_if(
      jobs_, [&id](const JobPointer& one) { return one->info.id() == id; });
  if (job == jobs_.end()) return absl::OkStatus();
  gone = std::move(*job);
  jobs_.erase(job);
  return absl::OkStatus();
}

absl::StatusOr<JobRunner::File> JobRunner::FindFile(
    const std::string& id, const std::string& name) const {
  const absl::MutexLock lock(&mutex_);
  const JobPointer job = Find(id);
  if (job == nullptr) return absl::NotFoundError("there is no such job");
  if (!IsOver(job->info.state()))
    return absl::FailedPreconditionError("the job is running");
  for (const v1::JobFile& file : job->info.files()) {
    if (file.name() != name) continue;
    File out;
    out.path_ = absl::StrCat(job->directory->path(), "/out/", name);
    out.keeps_ = job->directory;
    return out;
  }
  return absl::NotFoundError("the job has no such file");
}

JobRunner::JobPointer JobRunner::Find(const std::string& id) const {
  for (const JobPointer& job : jobs_) {
    if (job->info.id() == id) return job;
  }
  return nullptr;
}

std::vector<JobRunner::JobPointer> JobRunner::Forget() {
  const auto bytes_of = [](const Job& job) {
    uint64_t bytes = 0;
    for (const v1::JobFile& file : job.info.files())
      bytes += file.length_bytes();
    return bytes;
  };
  size_t over = 0;
  uint64_t bytes = 0;
  for (const JobPointer& job : jobs_) {
    if (!IsOver(job->info.state())) continue;
    ++over;
    bytes += bytes_of(*job);
  }
  std::vector<JobPointer> gone;
  std::erase_if(jobs_, [&](const JobPointer& job) {
    // One ended job is kept, however large its files are.
    const bool too_much =
        over > options_.most_kept || (options_.max_kept_bytes > 0 && over > 1 &&
                                      bytes > options_.max_kept_bytes);
    // Clients that wait for its end have not read it yet.
    if (!too_much || !IsOver(job->info.state()) || job->waiting > 0) {
      return false;
    }
    --over;
    bytes -= bytes_of(*job);
    gone.push_back(job);
    return true;
  });
  return gone;
}

v1::JobInfo JobRunner::InfoOf(const Job& job) const {
  v1::JobInfo info = job.info;
  info.set_stage(job.output.stage());
  info.set_percent(job.output.percent());
  info.set_messages(Shown(absl::StrCat(job.output.messages(), job.why),
                          job.directory->path()));
  return info;
}

void JobRunner::Work() {
  for (;;) {
    JobPointer job;
    {
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return ending_ || absl::c_any_of(jobs_, [](const JobPointer& one) {
                 return one->info.state() == v1::JOB_STATE_WAITING;
               });
      };
      const absl::MutexLock lock(&mutex_, absl::Condition(&ready));
      if (ending_) return;
      job = *absl::c_find_if(jobs_, [](const JobPointer& one) {
        return one->info.state() == v1::JOB_STATE_WAITING;
      });
      job->info.set_state(v1::JOB_STATE_RUNNING);
      job->info.set_started_unix_ns(NowNanos(*clock_));
    }
    Run(job);
    // Declared before the lock, so that their directories are deleted without
    // it.
    std::vector<JobPointer> gone;
    const absl::MutexLock lock(&mutex_);
    gone = Forget();
  }
}

bool JobRunner::IsCancelled(const Job& job) const {
  const absl::MutexLock lock(&mutex_);
  return job.cancelled;
}

absl::Status JobRunner::Prepare(const JobPointer& job, JobCommand* command) {
  const std::string& directory = job->directory->path();
  for (const char* const part : {"/out", "/in", "/tmp"}) {
    RP_RETURN_IF_ERROR(file_system_->CreateDirectories(directory + part));
  }
  for (const JobInputFile& input : command->inputs) {
    RP_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file,
                        file_system_->OpenForWrite(
                            input.path, FileSystem::OpenMode::kCreateNew));
    const absl::string_view content = input.content;
    RP_RETURN_IF_ERROR(file->Append({&content, 1}));
    RP_RETURN_IF_ERROR(file->Close());
  }
  uint64_t left = options_.max_job_bytes;
  for (const JobDump& dump : command->dumps) {
    {
      const absl::MutexLock lock(&mutex_);
      job->output.AddError(absl::StrCat(dump.name, " 0%\n"));
    }
    if (const auto free = file_system_->FreeBytes(directory); free.ok()) {
      left = std::min(left, *free - std::min(*free, options_.min_free_bytes));
    }
    RP_ASSIGN_OR_RETURN(
        const std::string path,
        options_.fetch(dump, left, [this, job] { return IsCancelled(*job); }));
    for (std::string& argument : command->arguments)
      absl::StrReplaceAll({{dump.path, path}}, &argument);
    const uint64_t bytes = BytesBelow(dump.path);
    left -= std::min(left, bytes);
  }
  return absl::OkStatus();
}

bool JobRunner::Overspends(const Job& job) const {
  if (BytesBelow(job.directory->path()) > options_.max_job_bytes) return true;
  const auto free = file_system_->FreeBytes(job.directory->path());
  return free.ok() && *free < options_.min_free_bytes;
}

void JobRunner::Run(const JobPointer& job) {
  const std::string& directory = job->directory->path();
  JobCommand command;
  {
    const absl::MutexLock lock(&mutex_);
    command = job->command;
  }
  const MonotonicTime end = MonotonicAfter(
      options_.max_time > absl::ZeroDuration() ? options_.max_time
                                               : absl::Hours(24 * 365));
  absl::Status status = Prepare(job, &command);
  int exit_code = 0;
  std::string overspent;
  std::shared_ptr<ChildProcess> child;
  if (status.ok()) {
    std::vector<std::string> arguments = options_.globals;
    arguments.insert(arguments.end(), command.arguments.begin(),
                     command.arguments.end());
    ChildOptions options;
    options.variables = {absl::StrCat("TMPDIR=", directory, "/tmp"),
                         "RANKPROBE_PROGRESS=lines"};
    if (command.reads_root || options_.apart) {
      options.variables.push_back(absl::StrCat(
          "RANKPROBE_READ_BELOW=", directory,
          command.reads_root ? absl::StrCat("\n", options_.root) : ""));
    }
    options.clean_environment = options.first_to_go = options_.apart;
    auto started = ChildProcess::Start(options_.program, arguments, options);
    status = started.status();
    if (started.ok()) child = *std::move(started);
  }
  if (child != nullptr) {
    bool stop = false;
    {
      const absl::MutexLock lock(&mutex_);
      // Cancel() stops `job->child` only if it is set, so a cancellation before
      // this point is executed here.
      job->child = child;
      stop = job->cancelled;
    }
    if (stop) child->Stop();
    MonotonicTime look_at = MonotonicAfter(kLookAtDisk);
    exit_code = child->Wait(
        [&](bool error, absl::string_view piece) {
          const absl::MutexLock lock(&mutex_);
          if (error) {
            job->output.AddError(piece);
          } else {
            job->output.AddAnswer(piece);
          }
        },
        [&] {
          if (!overspent.empty()) return;
          if (Until(end) <= absl::ZeroDuration()) {
            overspent = absl::StrCat("ended: it took longer than ",
                                     absl::FormatDuration(options_.max_time));
          } else if (options_.max_memory_bytes > 0 &&
                     child->ResidentBytes() > options_.max_memory_bytes) {
            overspent = absl::StrCat(
                "ended: it needed more memory than a job has here (",
                options_.max_memory_bytes >> 20, " MiB)");
          } else if (Until(look_at) <= absl::ZeroDuration()) {
            look_at = MonotonicAfter(kLookAtDisk);
            if (Overspends(*job))
              overspent = "ended: it needed more room on disk than a job has";
          }
          if (!overspent.empty()) child->Stop();
        });
  }
  // Files that the command needed while it ran; a killed one left them.
  for (const char* const part : {"/tmp", "/in"})
    (void)file_system_->DeleteTree(directory + part);
  const std::vector<v1::JobFile> files = FilesBelow(directory + "/out");
  const absl::MutexLock lock(&mutex_);
  job->output.Finish();
  job->child.reset();
  job->info.set_exit_code(exit_code);
  job->info.set_ended_unix_ns(NowNanos(*clock_));
  job->ended_ns = clock_->MonotonicNanos();
  // Exit code 1 means that the command found something or that its data has
  // gaps, so the job has succeeded.
  const bool good = status.ok() && exit_code <= kPartialExit &&
                    overspent.empty() && !job->output.cut();
  if (good) {
    job->info.set_state(v1::JOB_STATE_DONE);
    job->info.mutable_files()->Assign(files.begin(), files.end());
  } else if (job->cancelled && overspent.empty()) {
    job->info.set_state(v1::JOB_STATE_CANCELLED);
  } else {
    job->info.set_state(v1::JOB_STATE_FAILED);
    if (!status.ok()) job->why = std::string(status.message());
    if (!overspent.empty()) job->why = overspent;
    if (job->output.cut()) job->why = "its answer is too large";
    if (exit_code > 128) {
      absl::StrAppend(&job->why, job->why.empty() ? "" : "; ",
                      "ended by signal ", exit_code - 128);
    }
  }
}

}  // namespace rankprobe
