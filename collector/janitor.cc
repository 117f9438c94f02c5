#include "collector/janitor.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace rankprobe {

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
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

GarbageReport Janitor::last_garbage() const {
  absl::MutexLock lock(&mutex_);
  return last_garbage_;
}

void Janitor::Run() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_),
                                  options_.interval))
        return;
    }
    Round();
  }
}

void Janitor::Round() {
  const absl::StatusOr<RetentionReport> report =
      ApplyRetention(store_, options_.retention, clock_->Now(), live_());
  if (!report.ok()) {
    logger_->Log(Logger::Severity::kWarning, "janitor_failed",
                 {{"status", report.status().ToString()}});
    return;
  }
  const GarbageReport& garbage = report->garbage;
  {
    absl::MutexLock lock(&mutex_);
    last_garbage_ = garbage;
  }
  if (report->steps_deleted + garbage.orphans_freed +
          garbage.segments_removed ==
      0)
    return;
  logger_->Info("janitor",
                {{"steps_deleted", absl::StrCat(report->steps_deleted)},
                 {"runs_deleted", absl::StrCat(report->runs_deleted)},
                 {"orphans_freed", absl::StrCat(garbage.orphans_freed)},
                 {"segments_removed", absl::StrCat(garbage.segments_removed)},
                 {"bytes_removed", absl::StrCat(garbage.bytes_removed)},
                 {"live_bytes", absl::StrCat(garbage.live_bytes)}});
}

}  // namespace rankprobe
