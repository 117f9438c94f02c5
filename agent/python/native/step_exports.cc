#include "agent/python/native/step_exports.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <sys/file.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/grpc_channel.h"
#include "common/status_macros.h"

namespace rankprobe {
namespace {

constexpr absl::Duration kFlushDeadline = absl::Seconds(60);
constexpr int kFastest = 1;  // of zlib

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

absl::StatusOr<std::vector<std::string>> StepExports::TakeManifests() {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> out;
  for (const Packed& packed : manifests_) {
    std::string& text = out.emplace_back(packed.size, '\0');
    uLongf size = text.size();
    if (::uncompress(reinterpret_cast<Bytef*>(text.data()), &size,
                     reinterpret_cast<const Bytef*>(packed.bytes.data()),
                     packed.bytes.size()) != Z_OK) {
      return absl::InternalError("a kept manifest does not unpack");
    }
  }
  manifests_.clear();
  return out;
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
    absl::StatusOr<Packed> manifest = Export(step);
    absl::MutexLock lock(&mutex_);
    if (manifest.ok()) {
      manifests_.push_back(*std::move(manifest));
    } else {
      std::ofstream(options_.directory + "/keep");
      faults_.push_back(absl::StrCat("step ", step, " was not exported to ",
                                     options_.root, ", its archive is kept in ",
                                     options_.directory, ": ",
                                     manifest.status().message()));
    }
    step_.reset();
  }
}

absl::StatusOr<StepExports::Packed> StepExports::Export(int64_t step) {
  RP_RETURN_IF_ERROR(
      recorder_->session()->Flush(v1::DURABILITY_COMMITTED, kFlushDeadline));
  ExportLock lock;
  RP_RETURN_IF_ERROR(lock.Take(options_.directory + "/export.lock"));
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
  // A long run has one of them for each step.
  uLongf size = ::compressBound(text.size());
  Packed packed{std::string(size, '\0'), text.size()};
  if (::compress2(reinterpret_cast<Bytef*>(packed.bytes.data()), &size,
                  reinterpret_cast<const Bytef*>(text.data()), text.size(),
                  kFastest) != Z_OK) {
    return absl::InternalError("a manifest does not compress");
  }
  packed.bytes.resize(size);
  packed.bytes.shrink_to_fit();
  return packed;
}

}  // namespace rankprobe
