// SPDX-License-Identifier: Apache-2.0
// Audit log of changes to runs: one JSON object a line.
//
// What operators did is never dropped. What agents cause is bounded: after
// Options::max_agent_bytes of it the file is moved to `path`.1, and the one that
// was there goes; operators' lines of that one begin the new file. And it leaves
// the disk its reserve: lines that do not are counted in a line `Dropped`.
//
// Ownership: one per server; FileSystem and Clock outlive it. Thread-safe.
// Failure: a line that cannot be written is returned as a status; the caller
// says so in the log and goes on, because the action has happened. A file that
// cannot be turned over takes no further lines of agents; that is tried again
// with each of them.
#ifndef RANKPROBE_COLLECTOR_AUTH_AUDIT_LOG_H_
#define RANKPROBE_COLLECTOR_AUTH_AUDIT_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
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
  // Role of the lines that tell of dropped ones.
  static constexpr char kOwnRole[] = "rankprobed";

  struct Options {
    // Of agents' lines in the file.
    uint64_t max_agent_bytes = 64 << 20;
    // Agents' lines leave so much of the disk free.
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
    // Survives the machine, and so do all lines before it.
    kSynced,
  };

  // OK also for an agent's line that the disk had no room for.
  absl::Status Write(const AuditRecord& record, Durability durability);

  // Agents' lines for which there was no room.
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
  // Of those, counted in a line of the file.
  uint64_t dropped_told_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_AUTH_AUDIT_LOG_H_
