// The loss ledger: what became of every record and payload of one process'
// step. The one place that accounts; manifest.json, dump_error_info.log,
// `rankprobe ledger` and `status` only print what it says.
// Threads: pure functions over a Store. Failure: the store's first error.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_LEDGER_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_LEDGER_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "collector/archive/dump_json.h"
#include "collector/archive/step_view.h"
#include "collector/store/store.h"

namespace rankprobe {

// "rank3", or "proc4711" where the rank is not known.
std::string ProcessDirectory(const v1::StepInfo& step);

// "AGENT_BUDGET".
std::string LossReasonName(v1::LossReason reason);

// From the counts that the store keeps while frames come in; cheap, names no
// entries and does not look for payloads.
v1::StepLedger SummarizeStep(const v1::StepInfo& info);

// Frames that went with the collector's machine: their steps are not known, the
// entry's step is -1.
v1::StepLedger LostFrames(const v1::IncarnationRow& row);

// Where the bytes of a payload are damaged; empty if they are not, or if nobody
// knows.
using DamageFn = std::function<std::string(const v1::TensorSummary&)>;
DamageFn DamageOf(Store* store, const std::string& run);

// `missing` are the payloads of the view that cannot be had, `unreadable` those
// of them that could not be read. `details` of equal gaps are not merged.
v1::StepLedger AccountStep(
    const v1::StepInfo& info, const StepView& view,
    const std::vector<PayloadFile>& missing,
    const absl::flat_hash_set<const v1::TensorSummary*>& unreadable,
    const DamageFn& damage);

// The same, looking into the store for the records and each payload.
absl::StatusOr<v1::StepLedger> AccountStep(Store* store, const std::string& run,
                                           const v1::StepInfo& info);

// One line for a person: "lost AGENT_BUDGET: 3 records (detail)".
std::string GapText(const v1::LedgerGap& gap);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_LEDGER_H_
