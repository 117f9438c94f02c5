// SPDX-License-Identifier: Apache-2.0
// The loss ledger: what became of every record and payload of one process'
// step. The one place that accounts; manifest.json, dump_error_info.log,
// `rankprobe ledger` and `status` only print what it says.
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

// "rank3", or "proc4711" where the rank is not known.
std::string ProcessDirectory(const v1::StepInfo& step);

// "AGENT_BUDGET".
std::string LossReasonName(v1::LossReason reason);

// From the counts that the store keeps while frames come in; cheap, names no
// entries and does not look for payloads.
v1::StepLedger SummarizeStep(const v1::StepInfo& info);

// Frames of a process that are not in the archive: gone with the collector's
// machine, refused, never delivered, or perhaps recorded after a connection had
// ended without a goodbye and the process did not come back. Nobody knows all of
// their steps: the entry's step is -1. Of the first two its gaps count no records,
// which gaps of the steps count. None: it has no such frames.
std::optional<v1::StepLedger> AccountFrames(const v1::IncarnationRow& row);
// The same; none, too, if nothing of it can be of these steps.
std::optional<v1::StepLedger> AccountFrames(const v1::IncarnationRow& row,
                                            const IntSet& steps);

// Of a collector that could not be asked (ArchiveReader::Away): nobody knows what
// it has that is not here.
v1::StepLedger AccountAway(const std::string& why);
// Of what is damaged where the run is stored (ArchiveReader::Faults).
v1::StepLedger AccountFault(const std::string& why);

// Whether a step's records could not be read because of what they are, not because
// whoever has them does not answer. Such a step is a gap.
bool IsDamage(const absl::Status& status);
// For a person, of a rank-step whose records are damaged.
std::string UnreadableText(const v1::StepInfo& step, const absl::Status& why);
v1::StepLedger AccountUnreadable(const v1::StepInfo& info,
                                 const absl::Status& why);

// Payloads of which a piece was refused, and why, by their digest in the store.
using RefusedPayloads = absl::flat_hash_map<std::string, std::string>;
absl::StatusOr<RefusedPayloads> RefusedPayloadsOf(ArchiveReader* store,
                                                  const std::string& run);

// Where the bytes of a payload are damaged; empty if they are not, or if nobody
// knows.
using DamageFn = std::function<std::string(const v1::TensorSummary&)>;
DamageFn DamageOf(ArchiveReader* store, const std::string& run);

// `missing` are the payloads of the view that cannot be had, `unreadable` those
// of them that could not be read. `details` of equal gaps are not merged.
v1::StepLedger AccountStep(
    const v1::StepInfo& info, const StepView& view,
    const std::vector<PayloadFile>& missing,
    const absl::flat_hash_set<const v1::TensorSummary*>& unreadable,
    const DamageFn& damage, const RefusedPayloads& refused);

// The same, looking into the store for the records and each payload.
absl::StatusOr<v1::StepLedger> AccountStep(ArchiveReader* store,
                                           const std::string& run,
                                           const v1::StepInfo& info,
                                           const RefusedPayloads& refused);

// One line for a person: "lost AGENT_BUDGET: 3 records (detail)".
std::string GapText(const v1::LedgerGap& gap);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_LEDGER_H_
