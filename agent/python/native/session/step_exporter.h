// SPDX-License-Identifier: Apache-2.0
// StepExporter: makes a private collector write the trees of finished steps
// while the next ones are trained.
//
// Owned by the Python package. Threads: one of its own, begun with the first
// step; it never takes the GIL, so the training does not wait for it. Methods
// are called by one thread without the GIL, except in a forked child, where
// only the destructor may run. Failure: the exporter waits for a collector that
// is being restarted. TakeFaults reports a step that could not be exported; it
// is exported at the end of the job (_supervise.py). After a wait for a step
// has timed out (the disk may be full), no caller waits until the collector
// answers again, and steps that end during the next try are also left to the
// end. Each export wakes a dozen threads and asks for a commit, so steps that
// follow each other quickly are exported together.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_SESSION_STEP_EXPORTER_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_SESSION_STEP_EXPORTER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/runtime/recorder/recorder.h"
#include "common/base/fork_guard.h"
#include "common/base/monotonic_time.h"
#include "common/rpc/grpc_reference.h"
#include "rankprobe/v1/archive.grpc.pb.h"

namespace rankprobe {

class StepExporter {
 public:
  struct Options {
    std::string collector;  // its address, on this machine
    std::string run;
    std::string root;       // where the trees appear
    std::string directory;  // of the collector: export.lock, staging
    // The manifest of each export is appended to this file, so that it survives
    // a process that is killed: packed and unpacked size, 8 bytes each in this
    // machine's byte order, then zlib's bytes (_manifests.py reads it).
    std::string manifests;
    double seconds = 600;  // that an export may take
  };
  StepExporter(Options options, std::shared_ptr<Recorder> recorder);
  ~StepExporter();
  StepExporter(const StepExporter&) = delete;
  StepExporter& operator=(const StepExporter&) = delete;

  // Exports `step` and all waiting steps, after earlier ones. If the collector
  // is stuck, the export may not happen. Does not wait.
  void Begin(int64_t step);
  // The collector is known to commit nothing at present: the wait for its next
  // export is as short as after a failed export.
  void Stuck();
  // Waits until all steps are exported.
  void Wait();
  // Returns the failures since the last call. Of consecutive failures only the
  // first is reported, and their number at the end.
  std::vector<std::string> TakeFaults();
  // Waits for all steps as well, and releases the recorder.
  void Close();

 private:
  void Work();
  // Takes the waiting steps, once it is time to export them; empty when
  // closing.
  std::vector<int64_t> TakeSteps() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `patience`: how long to wait for a collector that makes no progress.
  absl::Status Export(const std::vector<int64_t>& steps,
                      absl::Duration patience);
  // Notes the result of exporting `steps`, and whether it took long.
  void Note(const std::vector<int64_t>& steps, const absl::Status& exported,
            bool took_long);
  // Waits until the records are committed, or until the collector has been
  // unreachable or stuck for too long.
  absl::Status Flush(absl::Duration patience);
  void NoteLeft(int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellLeft() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes one attempt; returns the manifest.
  absl::StatusOr<std::string> Request(const std::vector<int64_t>& steps);
  absl::Status KeepManifest(const std::string& text);

  const Options options_;
  const ForkGuard fork_guard_;
  const GrpcReference grpc_;
  const std::unique_ptr<v1::ArchiveService::Stub> archive_;
  std::shared_ptr<Recorder> recorder_;
  std::thread thread_;

  absl::Mutex mutex_;
  // Notified whenever the state that the thread waits for changes.
  MonotonicCondVar changed_;
  // Number of callers that wait until everything is exported.
  int waiters_ ABSL_GUARDED_BY(mutex_) = 0;
  // When the last export ended.
  std::optional<MonotonicTime> exported_ ABSL_GUARDED_BY(mutex_);
  // Steps to export. A set, because a step may be added twice.
  std::set<int64_t> waiting_ ABSL_GUARDED_BY(mutex_);
  // Set while steps are being exported.
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  // The last export failed after a long time.
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool stuck_ ABSL_GUARDED_BY(mutex_) = false;
  // Steps that were not exported since the last report, and the newest of them.
  int64_t left_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_left_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> faults_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_SESSION_STEP_EXPORTER_H_
