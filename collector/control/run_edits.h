// SPDX-License-Identifier: Apache-2.0
// Edits of the config files of one run's ranks: which state of the file is
// already known, which edit waits to become the run's plan, and why dumping is
// kept off. Not thread-safe: guarded by ControlCore's lock.
//
// The newest of file edit and operator's command wins. Ranks read the same file
// at different times, so a state of the file that the run knows is no edit; and
// an edit that its rank read before it received an operator's plan is older
// than that plan.
#ifndef RANKPROBE_COLLECTOR_CONTROL_RUN_EDITS_H_
#define RANKPROBE_COLLECTOR_CONTROL_RUN_EDITS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "collector/auth/audit_log.h"
#include "common/config/plan.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

struct FileEdit {
  // Empty and null if there is a fault.
  std::string config_json;
  std::shared_ptr<const Plan> config;
  // Why the config cannot be used; empty if it can.
  std::string fault;
  uint64_t seen_epoch = 0;
  std::optional<int64_t> rank;
  // For display: "rank 3, /work/config.json".
  std::string who;
  // Canonical content, the same for all ranks.
  std::string key;
  // `state` is the digest of `key`, with one value for all faults; empty if it
  // is not needed. `session` is the one that reported it.
  std::string state;
  std::string session;
  // The rank's step.
  int64_t step = -1;
  // Author of the edit for the audit log; without an outcome.
  AuditRecord audit;
  // Attempts to make it the plan of every rank, and the earliest time of the
  // next.
  int attempts = 0;
  absl::Time not_before = absl::InfinitePast();

  // Reads an event of `identity`. Compiles, so do not call it under a lock.
  // Never fails: an unusable config has a fault.
  static FileEdit Read(const v1::ConfigEdited& untrusted,
                       const v1::Identity& identity);
  // Returns whether an operator made `plan` and the edit's rank had not
  // received it yet.
  bool IsOlderThan(const v1::PlanSpec& plan) const;
};

class RunEdits {
 public:
  // Returns equal keys for configs that differ only in members that each rank
  // has its own value for (dump_path). Parses, so do not call it under a lock.
  static std::string KeyOf(const std::string& config_json);

  // `key` is FileEdit::key of a state of the file.
  bool Knows(const std::string& key) const { return key == key_; }
  // Returns false if the run knows this state of the file. Sets `superseded` to
  // an edit that waited and is now dropped.
  bool Take(FileEdit edit, std::optional<FileEdit>* superseded);
  // Sets the state of the file from which the plan in force was made.
  void Know(std::string key) { key_ = std::move(key); }

  // Takes the waiting edit if its time has come.
  std::optional<FileEdit> Next(absl::Time now);
  // Puts the edit back for another attempt. Returns false if another has
  // arrived since.
  bool TryAgain(FileEdit edit);
  bool waiting() const { return waiting_.has_value(); }

  // Keeps an edit that does not become the run's plan before other ranks have
  // read the same. Returns false if an equal one is already set aside.
  bool SetAside(FileEdit edit);
  const std::optional<FileEdit>& aside() const { return aside_; }
  std::optional<FileEdit> TakeAside() {
    return std::exchange(aside_, std::nullopt);
  }

  // Returns why dumping is kept off; empty if it is not.
  const std::string& fault() const { return fault_; }
  void SetFault(std::string fault) { fault_ = std::move(fault); }

 private:
  std::string key_;
  std::string fault_;
  std::optional<FileEdit> waiting_;
  std::optional<FileEdit> aside_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_RUN_EDITS_H_
