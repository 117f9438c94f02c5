// SPDX-License-Identifier: Apache-2.0
// Audit records of calls: one line in the audit log for the attempt, written
// before anything is done, and one for the outcome; both are synced before End
// returns, which is before the answer. The outcome is in the daemon's log, too.
//
// Ownership: one per server; AuditLog and Logger outlive it and its entries.
// Thread-safe: immutable. Failure: a line that cannot be written is an error in
// the daemon's log; the action continues.
#ifndef RANKPROBE_COLLECTOR_AUTH_AUDITOR_H_
#define RANKPROBE_COLLECTOR_AUTH_AUDITOR_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "collector/auth/audit_log.h"
#include "collector/auth/authorizer.h"
#include "common/base/logger.h"

namespace rankprobe {

class Auditor {
 public:
  // AuditRecord.outcome of the attempt.
  static constexpr char kBegun[] = "BEGUN";

  // One action between its two lines. Copies are the same action.
  class Entry {
   public:
    void End(absl::string_view outcome, uint64_t epoch = 0) const;
    // Writes the line of the attempt. Called before anything is done.
    void Begin() const;
    // `done` describes the result if `status` is OK.
    void End(const absl::Status& status, absl::string_view done) const;

   private:
    friend class Auditor;
    Entry(AuditRecord record, const Auditor* auditor)
        : record_(std::move(record)), auditor_(auditor) {}

    AuditRecord record_;
    const Auditor* auditor_;
  };

  // Both may be null: for calls inside this process there is no authorization
  // and no log.
  Auditor(AuditLog* log, std::shared_ptr<const Authorizer> authorizer,
          const Logger* logger)
      : log_(log), authorizer_(std::move(authorizer)), logger_(logger) {}

  // Writes nothing yet, because gRPC's threads must not wait for the disk.
  Entry Describe(const grpc::CallbackServerContext& context,
                 absl::string_view action, const std::string& run,
                 std::string detail) const;
  // The same for a call outside gRPC: `record` names the caller.
  Entry Describe(AuditRecord record) const;
  // Writes another component's record, such as a plan that an agent brought.
  // Not synced, because no caller waits for an answer.
  void Write(const AuditRecord& record) const;

  // Returns the caller's name, for display.
  std::string ActorOf(const grpc::CallbackServerContext& context) const;
  // PERMISSION_DENIED if the caller is not an operator.
  absl::Status CheckOperator(const grpc::CallbackServerContext& context,
                             absl::string_view what) const;

 private:
  void Write(const AuditRecord& record, AuditLog::Durability durability) const;

  AuditLog* const log_;
  const std::shared_ptr<const Authorizer> authorizer_;
  const Logger* const logger_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_AUTH_AUDITOR_H_
