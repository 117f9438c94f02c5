// SPDX-License-Identifier: Apache-2.0
// Delivery of what earlier processes left in the spool's directory.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/runtime/session/collector_link.h"
#include "common/base/status_macros.h"

namespace rankprobe {
absl::Status CollectorLink::DrainOrphan(OrphanSpool* orphan, SpoolDrain* drain,
                                        CollectorFinder* finder) {
  RP_ASSIGN_OR_RETURN(const std::shared_ptr<Target> target,
                      Locate(finder, orphan->identity()));
  const absl::Status status = drain->Run(target->channel.get(), orphan);
  if (absl::IsUnavailable(status)) finder->NoteNotReached();
  return status;
}

SpoolDrain CollectorLink::NewDrain(CollectorFinder* finder) {
  return SpoolDrain(
      options_.security, options_.agent_version, [this] { outbox_->Wake(); },
      [this](absl::Duration timeout) {
        spool_.Update();
        return outbox_->Wait(timeout);
      },
      [this, finder] {
        finder->NoteReached();
        status_.NoteHeard();
      });
}

// Sends what earlier processes left, under their own ranks and sequence
// numbers, before anything else. Returns false when stopping.
bool CollectorLink::DrainOrphans() {
  if (options_.spool_directory.empty()) return true;
  int passed_over = 0;
  const std::vector<std::unique_ptr<OrphanSpool>> orphans = OrphanSpool::Find(
      options_.spool_directory, spool_.file_system(),
      options_.file_system == nullptr ? IsOwnFile
                                      : [](const std::string&) { return true; },
      &passed_over);
  if (passed_over > 0) {
    const std::string line = absl::StrCat(
        "rankprobe: ", passed_over, " spools in ", options_.spool_directory,
        " are not sent: others made them or can change them\n");
    std::fputs(line.c_str(), stderr);
  }
  for (const auto& orphan : orphans) {
    CollectorFinder finder = NewFinder();
    SpoolDrain drain = NewDrain(&finder);
    absl::Status status;
    bool refused = false;
    for (;;) {
      status = DrainOrphan(orphan.get(), &drain, &finder);
      if (status.ok() || absl::IsCancelled(status)) break;
      // A refusal counts only if a new connection gets one, too.
      afresh_ = !absl::IsUnavailable(status);
      if (afresh_ && std::exchange(refused, true)) break;
      if (afresh_) continue;
      status_.NoteError(status);
      // An attempt that fails at once has spooled nothing, and a barrier may
      // wait for the spool.
      spool_.Update();
      if (!outbox_->Wait(options_.reconnect_max)) return false;
    }
    if (absl::IsCancelled(status)) return false;
    // Refused: the files stay for another time.
    if (!status.ok()) status_.NoteError(status);
  }
  return true;
}

}  // namespace rankprobe
