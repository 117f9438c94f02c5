// Who did what to a run: one JSON object a line. The file grows until an operator
// moves it away.
//
// Ownership: one per server; FileSystem and Clock outlive it. Thread-safe.
// Failure: a line that cannot be written is returned as a status; the caller
// says so in the log and goes on, because the action has happened.
#ifndef RANKPROBE_COLLECTOR_AUTH_AUDIT_LOG_H_
#define RANKPROBE_COLLECTOR_AUTH_AUDIT_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/io/file_system.h"

namespace rankprobe {

struct AuditRecord {
  std::string actor;
  std::string role;
  // Address of the other side, as gRPC prints it.
  std::string peer;
  // "SetDumpEnable".
  std::string action;
  std::string run;
  // Arguments, for a person.
  std::string detail;
  // "OK", or the status' name and message.
  std::string outcome;
  // The epoch that the action made; 0: none.
  uint64_t epoch = 0;
};

class AuditLog {
 public:
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::string& path,
                                                        FileSystem* file_system,
                                                        const Clock* clock);

  enum class Durability {
    // Survives this process.
    kWritten,
    // Survives the machine, and so do all lines before it.
    kSynced,
  };

  absl::Status Write(const AuditRecord& record, Durability durability);

 private:
  AuditLog(std::unique_ptr<WritableFile> file, const Clock* clock)
      : clock_(clock), file_(std::move(file)) {}

  const Clock* const clock_;
  absl::Mutex mutex_;
  const std::unique_ptr<WritableFile> file_ ABSL_PT_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_AUTH_AUDIT_LOG_H_
