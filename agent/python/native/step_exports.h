// StepExports: has a private collector write the trees of finished steps,
// beside the training of the next one.
//
// Owned by the Python package. Threads: one of its own, begun with the first
// step; it never takes the GIL, so the training does not wait for it. Methods
// are called by one thread without the GIL, except in a forked child, where
// only the destructor may run. Failure: a collector that is started again in
// the meantime is waited for; a step that could not be exported all the same
// is told by TakeFaults, and left to the end of the job (_supervise.py).
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_STEP_EXPORTS_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_STEP_EXPORTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "agent/runtime/recorder.h"
#include "common/fork_guard.h"
#include "rankprobe/v1/archive.grpc.pb.h"

namespace rankprobe {

class StepExports {
 public:
  struct Options {
    std::string collector;  // host:port, loopback
    std::string run;
    std::string root;       // where the trees appear
    std::string directory;  // of the collector: export.lock, staging
    // The manifest of each export is appended to it, so that it outlives a
    // process that is killed: sizes packed and unpacked, 8 bytes each in
    // this machine's order, and zlib's bytes (_manifests.py reads it).
    std::string manifests;
    double seconds = 600;  // that an export may take
  };
  StepExports(Options options, std::shared_ptr<Recorder> recorder);
  ~StepExports();
  StepExports(const StepExports&) = delete;
  StepExports& operator=(const StepExports&) = delete;

  // Exports `step`, after the one before it has been.
  void Begin(int64_t step);
  // Until the last step is exported.
  void Wait();
  // What failed since the last call.
  std::vector<std::string> TakeFaults();
  // Waits and lets go of the recorder.
  void Close();

 private:
  void Work();
  absl::Status Export(int64_t step);
  // Until what was recorded is committed, or the collector has been away for
  // too long.
  absl::Status Flush();
  // One try; the manifest.
  absl::StatusOr<std::string> Request(int64_t step);
  absl::Status KeepManifest(const std::string& text);

  const Options options_;
  const ForkGuard fork_guard_;
  const std::unique_ptr<v1::ArchiveService::Stub> archive_;
  std::shared_ptr<Recorder> recorder_;
  std::thread thread_;

  absl::Mutex mutex_;
  std::optional<int64_t> step_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> faults_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_STEP_EXPORTS_H_
