#include "agent/python/native/step_exports.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <sys/file.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/grpc_channel.h"
#include "common/status_macros.h"

namespace rankprobe {
namespace {

constexpr absl::Duration kFlushDeadline = absl::Seconds(60);
// A collector that was killed is started again within a second.
constexpr absl::Duration kAbsenceDeadline = absl::Seconds(10);
constexpr absl::Duration kRetryInterval = absl::Milliseconds(50);
constexpr int kFastest = 1;  // of zlib
constexpr size_t kHeaderBytes = 2 * sizeof(uint64_t);

std::unique_ptr<v1::ArchiveService::Stub> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // a manifest names each file
  return v1::ArchiveService::NewStub(MakeChannel(address, {}, arguments));
}

// One process of this machine at a time replaces a step's directory
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

StepExports::StepExports(Options options, std::shared_ptr<Recorder> recorder)
    : options_(std::move(options)),
      archive_(Connect(options_.collector)),
      recorder_(std::move(recorder)) {}

StepExports::~StepExports() {
  if (fork_guard_.InChild()) {
    // The thread is the parent's.
    if (thread_.joinable()) thread_.detach();
    return;
  }
  Close();
}

void StepExports::Begin(int64_t step) {
  Wait();
  {
    absl::MutexLock lock(&mutex_);
    if (closing_) return;
    step_ = step;
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Work(); });
}

void StepExports::Wait() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](StepExports* self)
           ABSL_NO_THREAD_SAFETY_ANALYSIS { return !self->step_.has_value(); },
      this));
}

std::vector<std::string> StepExports::TakeFaults() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(faults_, {});
}

void StepExports::Close() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  if (thread_.joinable()) thread_.join();
  recorder_.reset();
}

void StepExports::Work() {
  for (;;) {
    int64_t step = 0;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(
          +[](StepExports* self) ABSL_NO_THREAD_SAFETY_ANALYSIS {
            return self->step_.has_value() || self->closing_;
          },
          this));
      if (!step_.has_value()) return;
      step = *step_;
    }
    const absl::Status exported = Export(step);
    absl::MutexLock lock(&mutex_);
    if (!exported.ok()) {
      faults_.push_back(absl::StrCat("step ", step, " was not exported to ",
                                     options_.root,
                                     " yet: ", exported.message()));
    }
    step_.reset();
  }
}

absl::Status StepExports::Flush() {
  const absl::Time begun = absl::Now();
  const absl::Time deadline = begun + kFlushDeadline;
  absl::Time connected = begun;
  absl::Status status;
  do {
    status = recorder_->session()->Flush(v1::DURABILITY_COMMITTED,
                                         absl::Milliseconds(250));
    if (recorder_->session()->GetStats().connected) connected = absl::Now();
  } while (absl::IsDeadlineExceeded(status) && absl::Now() < deadline &&
           absl::Now() - connected < kAbsenceDeadline);
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(
      absl::StrCat("the collector has not taken all records after ",
                   absl::ToInt64Seconds(absl::Now() - begun), " s"));
}

absl::Status StepExports::Export(int64_t step) {
  RP_RETURN_IF_ERROR(Flush());
  ExportLock lock;
  RP_RETURN_IF_ERROR(lock.Take(options_.directory + "/export.lock"));
  const absl::Time deadline = absl::Now() + kAbsenceDeadline;
  for (;;) {
    const absl::StatusOr<std::string> manifest = Request(step);
    if (manifest.ok()) return KeepManifest(*manifest);
    // The collector may have been killed, and the export of a rank that was
    // killed may still hold the staging directory.
    const bool passes = absl::IsUnavailable(manifest.status()) ||
                        absl::IsCancelled(manifest.status()) ||
                        absl::IsFailedPrecondition(manifest.status());
    if (!passes || absl::Now() >= deadline) return manifest.status();
    absl::SleepFor(kRetryInterval);
  }
}

absl::StatusOr<std::string> StepExports::Request(int64_t step) {
  v1::ExportRequest request;
  request.set_run(options_.run);
  request.add_steps(step);
  request.set_server_directory(options_.root);
  request.set_manifest_in_reply(true);
  request.set_staging_directory(options_.directory + "/staging");
  grpc::ClientContext context;
  context.set_deadline(
      std::chrono::system_clock::now() +
      std::chrono::milliseconds(static_cast<int64_t>(1000 * options_.seconds)));
  const auto reader = archive_->Export(&context, request);
  std::string text;
  for (v1::ExportEvent event; reader->Read(&event);) {
    if (event.has_done())
      text.swap(*event.mutable_done()->mutable_manifest_json());
  }
  if (const absl::Status status = FromGrpc(reader->Finish()); !status.ok()) {
    return absl::Status(
        status.code(),
        absl::StrCat("collector ", options_.collector, ": ", status.message()));
  }
  return text;
}

absl::Status StepExports::KeepManifest(const std::string& text) {
  // A long run has one of them for each step.
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
