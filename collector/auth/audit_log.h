// SPDX-License-Identifier: Apache-2.0
// Audit log of changes to runs: one JSON object per line.
//
// Lines of operators are never dropped. Those that agents cause are bounded:
// after Options::max_agent_bytes of them the file is moved to `path`.1,
// replacing an earlier one, whose operators' lines are copied to the new file.
// Agents' lines also leave a reserve on the disk: lines beyond it are counted
// in a line `Dropped`.
//
// Ownership: one per server; FileSystem and Clock outlive it. Thread-safe.
// Failure: a line that cannot be written is returned as a status; the caller
// logs that and continues, because the action has happened. If the file cannot
// be rotated, it takes no further lines of agents; each of them tries the
// rotation again.
#ifndef RANKPROBE_COLLECTOR_AUTH_AUDIT_LOG_H_
#define RANKPROBE_COLLECTOR_AUTH_AUDIT_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/io/file_system.h"

namespace rankprobe {

struct AuditRecord {
  std::string actor;
  std::string role;
  // Address of the peer, as gRPC formats it.
  std::string peer;
  // For example "SetDumpEnable".
  std::string action;
  std::string run;
  // Arguments, for display.
  std::string detail;
  // "OK", or the status' name and message.
  std::string outcome;
  // The epoch that the action created; 0: none.
  uint64_t epoch = 0;
};

class AuditLog {
 public:
  // Role of the lines that report dropped ones.
  static constexpr char kOwnRole[] = "rankprobed";

  struct Options {
    // Limit for agents' lines in the file.
    uint64_t max_agent_bytes = 64 << 20;
    // Agents' lines leave this much of the disk free.
    uint64_t min_free_bytes = 0;
  };

  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const Options& options,
                                                        const std::string& path,
                                                        FileSystem* file_system,
                                                        const Clock* clock);
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::string& path,
                                                        FileSystem* file_system,
                                                        const Clock* clock) {
    return Open(Options(), path, file_system, clock);
  }

  enum class Durability {
    // Survives this process.
    kWritten,
    // Survives the machine, as do all lines before it.
    kSynced,
  };

  // Returns OK also for an agent's line that was dropped because of the
  // reserve.
  absl::Status Write(const AuditRecord& record, Durability durability);

  // Returns the number of agents' lines that were dropped.
  uint64_t CountDropped() const;

 private:
  AuditLog(const Options& options, std::string path, FileSystem* file_system,
           const Clock* clock)
      : options_(options),
        path_(std::move(path)),
        file_system_(file_system),
        clock_(clock) {}

  std::string LineOf(const AuditRecord& record) const;
  absl::Status OpenFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteOfAgent(const AuditRecord& record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TurnOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes operators' lines of the older file to `to`.
  absl::Status CarryOver(WritableFile* to) const;

  const Options options_;
  const std::string path_;
  FileSystem* const file_system_;
  const Clock* const clock_;
  mutable absl::Mutex mutex_;
  std::unique_ptr<WritableFile> file_ ABSL_GUARDED_BY(mutex_);
  uint64_t agent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  // Dropped lines that a line of the file already counts.
  uint64_t dropped_told_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_AUTH_AUDIT_LOG_H_
