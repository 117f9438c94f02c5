// SPDX-License-Identifier: Apache-2.0
#include "collector/server/store_janitor.h"

#include "absl/strings/str_cat.h"

namespace rankprobe {

void StoreJanitor::Start() {
  thread_ = std::thread([this] { Run(); });
}

void StoreJanitor::Stop() {
  stop_.Set();
  if (thread_.joinable()) thread_.join();
}

void StoreJanitor::Run() {
  do {
    Round();
  } while (!stop_.WaitFor(interval_));
}

void StoreJanitor::Round() {
  CleanReport report;
  const auto stopping = [this] { return stop_.WaitFor(absl::ZeroDuration()); };
  absl::Status status = cleaner_->Clean(stopping, &report);
  MergeReport merge;
  if (merger_ != nullptr) status.Update(merger_->Merge(stopping, &merge));
  if (merge.made > 0) {
    logger_->Info("merged", {{"sets", absl::StrCat(merge.merged)},
                             {"into", absl::StrCat(merge.made)}});
  }
  if (report.steps_deleted + report.collected + report.objects_removed > 0) {
    logger_->Info("cleaned",
                  {{"steps_deleted", absl::StrCat(report.steps_deleted)},
                   {"runs_deleted", absl::StrCat(report.runs_deleted)},
                   {"objects_no_longer_needed", absl::StrCat(report.collected)},
                   {"objects_removed", absl::StrCat(report.objects_removed)},
                   {"of_these_orphans", absl::StrCat(report.orphans_removed)},
                   {"old_plans", absl::StrCat(report.plans_removed)},
                   {"bytes_removed", absl::StrCat(report.bytes_removed)}});
  }
  if (report.waits_for_clock != waits_) {
    logger_->Log(
        Logger::Severity::kWarning,
        report.waits_for_clock ? "retention_waits" : "retention_goes_on",
        {{"why", report.waits_for_clock
                     ? "the wall clock has jumped, or does not fit the store: "
                       "nothing is deleted for its age until it has been "
                       "steady for an hour"
                     : "the wall clock is plausible again"}});
    waits_ = report.waits_for_clock;
  }
  if (!status.ok() && !failing_) {
    logger_->Log(Logger::Severity::kWarning, "not_cleaned",
                 {{"status", status.ToString()}, {"so", "it is tried again"}});
  }
  if (status.ok() && failing_) logger_->Info("cleaned_again");
  failing_ = !status.ok();
}

}  // namespace rankprobe
