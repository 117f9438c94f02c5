// SPDX-License-Identifier: Apache-2.0
// The loss ledger: what happened to every record and payload of one process'
// step. Only this file accounts; manifest.json, dump_error_info.log, `rankprobe
// ledger` and `status` print its results.
// Threads: pure functions over an archive. Failure: its first error.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_LEDGER_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_LEDGER_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "collector/store/archive_reader.h"
#include "dump_format/dump_json.h"
#include "dump_format/step_view.h"

namespace rankprobe {

// Returns "rank3", or "proc4711" if the rank is not known.
std::string ProcessDirectory(const v1::StepInfo& step);

// Returns a name such as "AGENT_BUDGET".
std::string LossReasonName(v1::LossReason reason);

// Returns the ledger from the counts that the store keeps during ingest; cheap,
// names no entries and does not look up payloads.
v1::StepLedger SummarizeStep(const v1::StepInfo& info);

// Returns the entry for frames of a process that are not in the archive: lost
// with the collector's machine, refused, undelivered, or possibly recorded
// after a connection ended without a goodbye and the process did not return.
// Not all of their steps are known, so the entry's step is -1. For the first
// two its gaps count no records, because gaps of the steps count them. Nothing
// if there are no such frames.
std::optional<v1::StepLedger> AccountFrames(const v1::IncarnationRow& row);
// The same; also nothing if none of the frames can belong to these steps.
std::optional<v1::StepLedger> AccountFrames(const v1::IncarnationRow& row,
                                            const IntSet& steps);

// Returns the entry for a collector that could not be asked
// (ArchiveReader::Unavailable): what it has is unknown.
v1::StepLedger AccountAway(const std::string& why);
// Returns the entry for damage in the run's storage (ArchiveReader::Faults).
v1::StepLedger AccountFault(const std::string& why);

// Returns whether a step's records could not be read because they are damaged,
// not because their collector does not answer. Such a step is a gap.
bool IsDamage(const absl::Status& status);
// Returns a text for display about a rank-step whose records are damaged.
std::string UnreadableText(const v1::StepInfo& step, const absl::Status& why);
v1::StepLedger AccountUnreadable(const v1::StepInfo& info,
                                 const absl::Status& why);

// Returns the payloads of which a chunk was refused, with the reason, by their
// digest in the store.
using RefusedPayloads = absl::flat_hash_map<std::string, std::string>;
absl::StatusOr<RefusedPayloads> RefusedPayloadsOf(ArchiveReader* store,
                                                  const std::string& run);

// Returns a function for where a payload is damaged; its result is empty if no
// damage is known.
using DamageFn = std::function<std::string(const v1::TensorSummary&)>;
DamageFn DamageOf(ArchiveReader* store, const std::string& run);

// `missing` are the unavailable payloads of the view, `unreadable` those of
// them that could not be read. Equal gaps with different `details` are not
// merged.
v1::StepLedger AccountStep(
    const v1::StepInfo& info, const StepView& view,
    const std::vector<PayloadFile>& missing,
    const absl::flat_hash_set<const v1::TensorSummary*>& unreadable,
    const DamageFn& damage, const RefusedPayloads& refused);

// The same, after reading the records and looking up each payload.
absl::StatusOr<v1::StepLedger> AccountStep(ArchiveReader* store,
                                           const std::string& run,
                                           const v1::StepInfo& info,
                                           const RefusedPayloads& refused);

// Returns one line for display: "lost AGENT_BUDGET: 3 records (detail)".
std::string GapText(const v1::LedgerGap& gap);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_LEDGER_H_
