// SPDX-License-Identifier: Apache-2.0
// Edits of the config files of one run's ranks: which state of the file is
// known already, which edit waits to become the run's plan, and why dumping is
// kept off. Not thread-safe: guarded by ControlCore's lock.
//
// The newest of file edit and operator's command wins. Ranks read the same file
// at different times, so a state of the file that the run knows is no edit; and
// an edit that its rank read before it heard of an operator's plan is older
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
  // Empty with a fault, and null.
  std::string config_json;
  std::shared_ptr<const Plan> config;
  // Why it cannot be used; empty: it can.
  std::string fault;
  uint64_t seen_epoch = 0;
  std::optional<int64_t> rank;
  // "rank 3, /work/config.json".
  std::string who;
  // What it says, the same for all ranks.
  std::string key;
  // Digest of that, any fault being as good as another; empty where nobody
  // needs it. And whose session told it.
  std::string state;
  std::string session;
  // The rank's step.
  int64_t step = -1;
  // Who edited, for the audit log; without an outcome.
  AuditRecord audit;
  // Tries to make it the plan of every rank, and when the next may be made.
  int attempts = 0;
  absl::Time not_before = absl::InfinitePast();

  // Of an event of `rank`; compiles, so not under a lock. Never fails: what
  // cannot be used has a fault.
  static FileEdit Read(const v1::ConfigEdited& untrusted,
                       const v1::Identity& identity);
  // Its rank had not heard of `plan` yet, which an operator made.
  bool IsOlderThan(const v1::PlanSpec& plan) const;
};

class RunEdits {
 public:
  // The same for configs that say the same, members apart that are each rank's
  // own (dump_path). Parses, so not under a lock.
  static std::string KeyOf(const std::string& config_json);

  // Of a state of the file, as FileEdit::key.
  bool Knows(const std::string& key) const { return key == key_; }
  // False: the run knows this state of the file. `superseded` is set to the
  // edit that waited, which nobody will try any more.
  bool Take(FileEdit edit, std::optional<FileEdit>* superseded);
  // What the file said that the plan in force was made of.
  void Know(std::string key) { key_ = std::move(key); }

  // Takes the edit that waits if its time has come.
  std::optional<FileEdit> Next(absl::Time now);
  // It is to be tried again. False: another has come since.
  bool TryAgain(FileEdit edit);
  bool waiting() const { return waiting_.has_value(); }

  // Not the run's before others have read the same. False: one that says so is
  // aside already.
  bool SetAside(FileEdit edit);
  const std::optional<FileEdit>& aside() const { return aside_; }
  std::optional<FileEdit> TakeAside() {
    return std::exchange(aside_, std::nullopt);
  }

  // Why dumping is kept off; empty: it is not.
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
