// SPDX-License-Identifier: Apache-2.0
#include "collector/server/janitor.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

// Interval of the checks of the segments' size.
constexpr absl::Duration kLook = absl::Milliseconds(100);
constexpr absl::Duration kRestOverLimit = absl::Seconds(1);

}  // namespace

Janitor::Janitor(const Options& options, Store* store, const Clock* clock,
                 const Logger* logger,
                 std::function<absl::flat_hash_set<uint64_t>()> live)
    : options_(options),
      store_(store),
      clock_(clock),
      logger_(logger),
      live_(std::move(live)) {}

Janitor::~Janitor() { Stop(); }

void Janitor::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Janitor::Stop() {
  stop_.Set();
  if (thread_.joinable()) thread_.join();
}

GarbageReport Janitor::last_garbage() const {
  absl::MutexLock lock(&mutex_);
  return last_garbage_;
}

void Janitor::Run() {
  const auto now_ns = [this] { return clock_->MonotonicNanos(); };
  const int64_t interval_ns = absl::ToInt64Nanoseconds(options_.interval);
  const uint64_t limit = options_.retention.max_bytes;
  int64_t next_ns = now_ns() + interval_ns, not_before_ns = 0;
  for (;;) {
    if (stop_.WaitFor(limit > 0 ? std::min(options_.interval, kLook)
                                : options_.interval))
      return;
    const bool due = now_ns() >= next_ns;
    const bool full =
        limit > 0 && ArchiveBytes(store_) > limit && now_ns() >= not_before_ns;
    if (!due && !full) continue;
    // If nothing more may be deleted, another check at once would not help.
    if (Round())
      not_before_ns = now_ns() + absl::ToInt64Nanoseconds(kRestOverLimit);
    if (due) next_ns = now_ns() + interval_ns;
  }
}

bool Janitor::AgesAreKnown() {
  if (options_.retention.max_age == absl::InfiniteDuration()) return false;
  if (!guard_.has_value()) {
    const absl::StatusOr<std::vector<v1::RunInfo>> runs = store_->ListRuns();
    if (!runs.ok()) return false;
    std::optional<absl::Time> newest;
    for (const v1::RunInfo& run : *runs) {
      const absl::Time written = absl::FromUnixNanos(run.updated_unix_ns());
      newest = std::max(newest.value_or(written), written);
    }
    guard_.emplace(clock_, newest, options_.retention.max_age);
  }
  const bool known = guard_->Trusts();
  if (known != ages_known_) {
    logger_->Log(Logger::Severity::kWarning,
                 known ? "retention_goes_on" : "retention_waits",
                 {{"why", known ? "the wall clock is plausible again"
                                : "the wall clock has jumped, or does not fit "
                                  "the archive: nothing is deleted for its "
                                  "age until it has been steady for an hour"}});
  }
  ages_known_ = known;
  return known;
}

bool Janitor::Round() {
  RetentionOptions options = options_.retention;
  if (!AgesAreKnown()) options.max_age = absl::InfiniteDuration();
  const absl::StatusOr<RetentionReport> report =
      ApplyRetention(store_, options, clock_->Now(), live_());
  if (!report.ok()) {
    logger_->Log(Logger::Severity::kWarning, "janitor_failed",
                 {{"status", report.status().ToString()}});
    return true;
  }
  if (report->over_limit && !told_over_limit_) {
    logger_->Log(Logger::Severity::kWarning, "retention_over_limit",
                 {{"segment_bytes", absl::StrCat(store_->SegmentBytes())},
                  {"rollup_bytes", absl::StrCat(store_->RollupBytes())},
                  {"limit", absl::StrCat(options.max_bytes)},
                  {"why",
                   "what is left are unfinished and newest steps of connected "
                   "ranks"}});
  }
  told_over_limit_ = report->over_limit;
  if (report->garbage.unknown_segments > 0 && !told_unknown_) {
    told_unknown_ = true;
    logger_->Log(Logger::Severity::kWarning, "unknown_segments",
                 {{"segments", absl::StrCat(report->garbage.unknown_segments)},
                  {"what_to_do",
                   "no row of this index has ever named them and they are "
                   "not deleted; `rankprobed --rebuild-index` reads them, "
                   "or remove them by hand"}});
  }
  const GarbageReport& garbage = report->garbage;
  {
    absl::MutexLock lock(&mutex_);
    last_garbage_ = garbage;
  }
  if (report->steps_deleted + garbage.orphans_freed +
          garbage.segments_removed ==
      0)
    return true;
  logger_->Info("janitor",
                {{"steps_deleted", absl::StrCat(report->steps_deleted)},
                 {"runs_deleted", absl::StrCat(report->runs_deleted)},
                 {"orphans_freed", absl::StrCat(garbage.orphans_freed)},
                 {"segments_removed", absl::StrCat(garbage.segments_removed)},
                 {"bytes_removed", absl::StrCat(garbage.bytes_removed)},
                 {"live_bytes", absl::StrCat(garbage.live_bytes)}});
  return false;
}

}  // namespace rankprobe
