// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/session/step_exporter.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <sys/file.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/blocked_signals.h"
#include "common/base/monotonic_time.h"
#include "common/base/status_macros.h"
#include "common/rpc/grpc_channel.h"

namespace rankprobe {
namespace {

constexpr absl::Duration kFlushDeadline = absl::Seconds(60);
// A collector that was killed is restarted within a second; one whose disk is
// full commits nothing.
constexpr absl::Duration kPatience = absl::Seconds(10);
constexpr absl::Duration kPatienceWithStuck = absl::Milliseconds(250);
constexpr absl::Duration kRetryInterval = absl::Milliseconds(50);
// Steps of one export. More may wait as numbers: their data is in the collector
// already, only their trees are missing.
constexpr size_t kMaxStepsAtOnce = 16;
// Pause between two exports while no caller waits and few steps do.
constexpr absl::Duration kRest = absl::Milliseconds(100);
constexpr size_t kManySteps = kMaxStepsAtOnce / 2;
constexpr int kFastest = 1;  // of zlib
constexpr size_t kHeaderBytes = 2 * sizeof(uint64_t);

std::unique_ptr<v1::ArchiveService::Stub> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // a manifest names each file
  // gRPC's threads inherit the mask.
  const BlockedSignals blocked;
  return v1::ArchiveService::NewStub(MakeChannel(address, {}, arguments));
}

// Only one process of this machine at a time may replace a step's directory
// (embedded.py takes the same lock).
class ExportLock {
 public:
  ExportLock() = default;
  ~ExportLock() {
    if (file_ >= 0) ::close(file_);
  }
  ExportLock(const ExportLock&) = delete;
  ExportLock& operator=(const ExportLock&) = delete;

  absl::Status Take(const std::string& path) {
    file_ =
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    int locked = file_ < 0 ? -1 : ::flock(file_, LOCK_EX);
    while (file_ >= 0 && locked != 0 && errno == EINTR)
      locked = ::flock(file_, LOCK_EX);
    if (locked == 0) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, absl::StrCat("locking ", path));
  }

 private:
  int file_ = -1;
};

}  // namespace

StepExporter::StepExporter(Options options, std::shared_ptr<Recorder> recorder)
    : options_(std::move(options)),
      archive_(Connect(options_.collector)),
      recorder_(std::move(recorder)) {}

StepExporter::~StepExporter() {
  if (fork_guard_.InChild()) {
    // The thread belongs to the parent.
    if (thread_.joinable()) thread_.detach();
    return;
  }
  Close();
}

void StepExporter::Begin(int64_t step) {
  {
    absl::MutexLock lock(&mutex_);
    if (closing_) return;
    // While a stuck collector is tried again, steps are left to the end of the
    // job.
    if (stuck_ && busy_) return NoteLeft(step);
    waiting_.insert(step);
    // Otherwise the thread wakes up by itself.
    if (waiting_.size() == 1 || waiting_.size() == kManySteps)
      changed_.NotifyAll();
  }
  if (!thread_.joinable()) {
    const BlockedSignals blocked;
    thread_ = std::thread([this] { Work(); });
  }
}

void StepExporter::Stuck() {
  absl::MutexLock lock(&mutex_);
  stuck_ = true;
}

void StepExporter::Wait() {
  absl::MutexLock lock(&mutex_);
  ++waiters_;
  changed_.NotifyAll();
  mutex_.Await(absl::Condition(
      +[](StepExporter* self) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return self->waiting_.empty() && !self->busy_;
      },
      this));
  --waiters_;
}

std::vector<std::string> StepExporter::TakeFaults() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(faults_, {});
}

void StepExporter::Close() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  recorder_.reset();
  absl::MutexLock lock(&mutex_);
  TellLeft();
}

void StepExporter::NoteLeft(int64_t step) {
  ++left_;
  last_left_ = std::max(last_left_, step);
}

void StepExporter::TellLeft() {
  if (left_ == 0) return;
  faults_.push_back(absl::StrCat(left_, " more steps, the last of them step ",
                                 last_left_, ", were not exported to ",
                                 options_.root, " yet"));
  left_ = 0;
  last_left_ = 0;
}

std::vector<int64_t> StepExporter::TakeSteps() {
  const auto any = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return !waiting_.empty() || closing_;
  };
  const auto hurries = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return closing_ || waiters_ > 0 || waiting_.size() >= kManySteps;
  };
  while (!changed_.WaitFor(&mutex_, absl::InfiniteDuration(), any)) {
  }
  if (exported_.has_value())
    changed_.WaitFor(&mutex_, kRest - Since(*exported_), hurries);
  auto end = waiting_.begin();
  std::advance(end, std::min(waiting_.size(), kMaxStepsAtOnce));
  std::vector<int64_t> steps(waiting_.begin(), end);
  waiting_.erase(waiting_.begin(), end);
  return steps;
}

void StepExporter::Work() {
  for (;;) {
    std::vector<int64_t> steps;
    absl::Duration patience = kPatience;
    {
      absl::MutexLock lock(&mutex_);
      steps = TakeSteps();
      if (steps.empty()) return;
      busy_ = true;
      if (stuck_) patience = kPatienceWithStuck;
    }
    const MonotonicTime begun = MonotonicNow();
    const absl::Status exported = Export(steps, patience);
    if (exported.ok() || steps.size() == 1 || Since(begun) >= patience) {
      Note(steps, exported, Since(begun) >= patience);
    } else {
      // One step that cannot be exported, for example because its directory is
      // taken, must not prevent the others.
      for (const int64_t step : steps) {
        const MonotonicTime tried = MonotonicNow();
        const absl::Status alone = Export({step}, patience);
        Note({step}, alone, Since(tried) >= patience);
      }
    }
    absl::MutexLock lock(&mutex_);
    busy_ = false;
    exported_ = MonotonicNow();
  }
}

void StepExporter::Note(const std::vector<int64_t>& steps,
                        const absl::Status& exported, bool took_long) {
  absl::MutexLock lock(&mutex_);
  if (exported.ok()) TellLeft();
  for (const int64_t step : steps) {
    if (exported.ok()) break;
    if (std::exchange(failed_, true)) {
      NoteLeft(step);
    } else {
      faults_.push_back(absl::StrCat("step ", step, " was not exported to ",
                                     options_.root,
                                     " yet: ", exported.message()));
    }
  }
  failed_ = !exported.ok();
  stuck_ = failed_ && took_long;
}

absl::Status StepExporter::Flush(absl::Duration patience) {
  const MonotonicTime begun = MonotonicNow();
  MonotonicTime moved = begun;
  uint64_t committed = recorder_->session()->GetStats().committed_sequence;
  absl::Status status;
  do {
    status = recorder_->session()->Flush(v1::DURABILITY_COMMITTED,
                                         absl::Milliseconds(250));
    const uint64_t now = recorder_->session()->GetStats().committed_sequence;
    if (std::exchange(committed, now) != now) moved = MonotonicNow();
  } while (absl::IsDeadlineExceeded(status) && Since(begun) < kFlushDeadline &&
           Since(moved) < patience);
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(
      absl::StrCat("the collector has not accepted all records after ",
                   absl::ToInt64Seconds(Since(begun)), " s"));
}

absl::Status StepExporter::Export(const std::vector<int64_t>& steps,
                                  absl::Duration patience) {
  RP_RETURN_IF_ERROR(Flush(patience));
  ExportLock lock;
  RP_RETURN_IF_ERROR(lock.Take(options_.directory + "/export.lock"));
  const MonotonicTime deadline = MonotonicAfter(patience);
  for (;;) {
    const absl::StatusOr<std::string> manifest = Request(steps);
    if (manifest.ok()) return KeepManifest(*manifest);
    // Temporary: the collector may have been killed, or the export of a killed
    // rank may still hold the staging directory.
    const bool passes = absl::IsUnavailable(manifest.status()) ||
                        absl::IsCancelled(manifest.status()) ||
                        absl::IsFailedPrecondition(manifest.status());
    if (!passes || MonotonicNow() >= deadline) return manifest.status();
    absl::SleepFor(kRetryInterval);
  }
}

absl::StatusOr<std::string> StepExporter::Request(
    const std::vector<int64_t>& steps) {
  v1::ExportRequest request;
  request.set_run(options_.run);
  for (const int64_t step : steps) request.add_steps(step);
  request.set_server_directory(options_.root);
  request.set_manifest_in_reply(true);
  request.set_staging_directory(options_.directory + "/staging");
  grpc::ClientContext context;
  context.set_deadline(
      std::chrono::system_clock::now() +
      std::chrono::milliseconds(static_cast<int64_t>(1000 * options_.seconds)));
  const auto reader = archive_->Export(&context, request);
  v1::ExportDone done;
  for (v1::ExportEvent event; reader->Read(&event);) {
    if (event.has_done()) done.Swap(event.mutable_done());
  }
  if (const absl::Status status = FromGrpc(reader->Finish()); !status.ok()) {
    return absl::Status(
        status.code(),
        absl::StrCat("collector ", options_.collector, ": ", status.message()));
  }
  if (steps.size() > 1 && done.steps() < steps.size()) {
    return absl::NotFoundError(absl::StrCat(
        "collector ", options_.collector, " has no data of ",
        steps.size() - done.steps(), " of ", steps.size(), " steps"));
  }
  return std::move(*done.mutable_manifest_json());
}

absl::Status StepExporter::KeepManifest(const std::string& text) {
  // Compressed, because a long run has one manifest for each step.
  uLongf size = ::compressBound(text.size());
  std::string packed(kHeaderBytes + size, '\0');
  if (::compress2(reinterpret_cast<Bytef*>(packed.data()) + kHeaderBytes, &size,
                  reinterpret_cast<const Bytef*>(text.data()), text.size(),
                  kFastest) != Z_OK) {
    return absl::InternalError("a manifest does not compress");
  }
  packed.resize(kHeaderBytes + size);
  const std::array<uint64_t, 2> header{size, text.size()};
  std::memcpy(packed.data(), header.data(), kHeaderBytes);
  std::ofstream file(options_.manifests, std::ios::binary | std::ios::app);
  file.write(packed.data(), static_cast<std::streamsize>(packed.size()));
  file.close();
  if (file.good()) return absl::OkStatus();
  return absl::ErrnoToStatus(
      errno, absl::StrCat("writing the manifest to ", options_.manifests));
}

}  // namespace rankprobe
