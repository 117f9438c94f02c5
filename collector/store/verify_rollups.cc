// SPDX-License-Identifier: Apache-2.0
#include "collector/store/verify_rollups.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "collector/store/keys.h"
#include "collector/store/rows.h"
#include "collector/store/step_summary.h"
#include "common/base/status_macros.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {
namespace {

class RollupVerifier {
 public:
  RollupVerifier(Index* index, const RollupHooks& hooks)
      : index_(index), hooks_(hooks) {}

  absl::Status Table() {
    return index_->Scan(
        "h",
        [&](absl::string_view key, absl::string_view value) -> absl::Status {
          RP_RETURN_IF_ERROR(hooks_.row());
          v1::RollupHead head;
          const uint32_t run = keys::ParseRun(key).value_or(0);
          // In these keys step and incarnation are swapped.
          const std::optional<keys::StepParts> swapped = keys::ParseStep(key);
          if (!swapped.has_value() || !ParseRow(value, &head)) {
            hooks_.fault(run, ": a rollup cannot be read");
            return absl::OkStatus();
          }
          return Check(key, value, run,
                       static_cast<int64_t>(swapped->incarnation),
                       static_cast<uint64_t>(swapped->step), head);
        });
  }

  // Checks the summaries that contain heads.
  absl::Status Summaries() {
    return index_->Scan(
        "j",
        [&](absl::string_view key, absl::string_view value) -> absl::Status {
          RP_RETURN_IF_ERROR(hooks_.row());
          if (!SummaryTileView::HasHeads(value)) return absl::OkStatus();
          const uint32_t run = keys::ParseRun(key).value_or(0);
          const std::optional<uint64_t> tile = keys::ParseTile(key);
          const std::optional<uint64_t> sender =
              keys::ParseTileIncarnation(key);
          const absl::StatusOr<SummaryTileView> view =
              SummaryTileView::Parse(value, 1, tile.value_or(0));
          if (!tile.has_value() || !sender.has_value() || !view.ok()) {
            hooks_.fault(run, ": a row of summaries cannot be read");
            return absl::OkStatus();
          }
          return view->ForEachHead(
              ~uint64_t{0}, [&](int64_t step, const v1::RollupHead& head) {
                return Check(key, value, run, step, *sender, head);
              });
        });
  }

 private:
  // `key` and `value` are those of the row that contains the head.
  absl::Status Check(absl::string_view key, absl::string_view value,
                     uint32_t run, int64_t step, uint64_t incarnation,
                     const v1::RollupHead& head) {
    RP_ASSIGN_OR_RETURN(const auto row_bytes,
                        index_->Get(keys::Step(run, step, incarnation)));
    v1::StepRow row;
    const bool there = row_bytes.has_value() && ParseRow(*row_bytes, &row);
    const bool deleted = row.deleted_unix_ns() != 0;
    std::string fault;
    if (!there) {
      fault = "there is a rollup and no step";
    } else if (deleted != head.deleted()) {
      fault = deleted ? "the step was deleted, its rollup was not"
                      : "the rollup says that the step was deleted";
    } else if (!deleted && row.records() != head.records()) {
      fault = absl::StrCat("the rollup is of ", head.records(), " records, ",
                           row.records(), " are here");
    } else if (!deleted) {
      RP_ASSIGN_OR_RETURN(const auto layout,
                          index_->Get(keys::RollupLayout(run, head.layout())));
      if (layout.has_value()) return absl::OkStatus();
      fault = "the layout of its rollup is missing";
    } else {
      return absl::OkStatus();
    }
    // The rollup is queued, or both have changed meanwhile.
    RP_ASSIGN_OR_RETURN(const auto pending, index_->Get(keys::PendingRollup(
                                                run, step, incarnation)));
    RP_ASSIGN_OR_RETURN(const auto now, index_->Get(key));
    RP_ASSIGN_OR_RETURN(const auto deletion,
                        index_->Get(keys::DeletedStep(run, step, incarnation)));
    RP_ASSIGN_OR_RETURN(const auto row_now,
                        index_->Get(keys::Step(run, step, incarnation)));
    if (pending.has_value() || deletion.has_value() || now != value ||
        row_now != row_bytes)
      return absl::OkStatus();
    hooks_.fault(run, absl::StrCat(", step ", step, ": ", fault));
    return absl::OkStatus();
  }

  Index* const index_;
  const RollupHooks& hooks_;
};

}  // namespace

absl::Status VerifyRollups(Index* index, const RollupHooks& hooks) {
  RollupVerifier verifier(index, hooks);
  RP_RETURN_IF_ERROR(verifier.Summaries());
  return verifier.Table();
}

}  // namespace rankprobe
