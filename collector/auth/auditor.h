// SPDX-License-Identifier: Apache-2.0
// Records each audited call and its outcome: one line in the audit log for the
// attempt, written before anything is done, and one for the outcome; both are
// synced before End returns, which is before the answer. The outcome is in the
// daemon's log, too.
//
// Ownership: one per server; AuditLog and Logger outlive it and its entries.
// Thread-safe: immutable. Failure: a line that cannot be written is an error in
// the daemon's log; the action goes on.
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
  // Of AuditRecord, for the attempt.
  static constexpr char kBegun[] = "BEGUN";

  // One action between its two lines. Copies are the same action.
  class Entry {
   public:
    void End(absl::string_view outcome, uint64_t epoch = 0) const;
    // The line of the attempt, before anything is done.
    void Begin() const;
    // `done` says what was done, when it was.
    void End(const absl::Status& status, absl::string_view done) const;

   private:
    friend class Auditor;
    Entry(AuditRecord record, const Auditor* auditor)
        : record_(std::move(record)), auditor_(auditor) {}

    AuditRecord record_;
    const Auditor* auditor_;
  };

  // Both may be null: within a process that asks itself there is nobody to be
  // checked and no log.
  Auditor(AuditLog* log, std::shared_ptr<const Authorizer> authorizer,
          const Logger* logger)
      : log_(log), authorizer_(std::move(authorizer)), logger_(logger) {}

  // Writes nothing yet: gRPC's threads do not wait for the disk.
  Entry Describe(const grpc::CallbackServerContext& context,
                 absl::string_view action, const std::string& run,
                 std::string detail) const;
  // The same of a call that gRPC does not know: `record` says whose it is.
  Entry Describe(AuditRecord record) const;
  // What another party has noted, such as a plan that an agent brought: nobody
  // waits for an answer, so it is not synced.
  void Write(const AuditRecord& record) const;

  // Whose call it is, for a person.
  std::string ActorOf(const grpc::CallbackServerContext& context) const;
  // PERMISSION_DENIED when the caller is not an operator.
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
