// StepExports: has a private collector write the trees of finished steps,
// beside the training of the next one.
//
// Owned by the Python package. Threads: one of its own, begun with the first
// step; it never takes the GIL, so the training does not wait for it. Methods
// are called by one thread without the GIL, except in a forked child, where
// only the destructor may run. Failure: a step that could not be exported is
// told by TakeFaults, and the collector's archive is kept.
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
    std::string directory;  // of the collector: export.lock, keep
    double seconds = 600;   // that an export may take
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
  // The manifest.json of each export, in order; they are forgotten.
  absl::StatusOr<std::vector<std::string>> TakeManifests();
  // Waits and lets go of the recorder.
  void Close();

 private:
  struct Packed {
    std::string bytes;
    size_t size;  // before it was compressed
  };

  void Work();
  absl::StatusOr<Packed> Export(int64_t step);

  const Options options_;
  const ForkGuard fork_guard_;
  const std::unique_ptr<v1::ArchiveService::Stub> archive_;
  std::shared_ptr<Recorder> recorder_;
  std::thread thread_;

  absl::Mutex mutex_;
  std::optional<int64_t> step_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> faults_ ABSL_GUARDED_BY(mutex_);
  std::vector<Packed> manifests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_STEP_EXPORTS_H_
