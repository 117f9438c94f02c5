// SPDX-License-Identifier: Apache-2.0
#include "collector/server/uploader.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

// Like the roller: gives it a tenth of a processor if threads that take frames
// are busy.
constexpr int kUploaderNice = 10;
constexpr absl::Duration kTellAgain = absl::Minutes(1);

}  // namespace

Uploader::Uploader(const Options& options, Sealer* sealer, const Clock* clock,
                   const Logger* logger)
    : options_(options), sealer_(sealer), clock_(clock), logger_(logger) {}

Uploader::~Uploader() { Stop(); }

void Uploader::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Uploader::Stop() {
  stop_.Set();
  if (thread_.joinable()) thread_.join();
}

void Uploader::Tell(const absl::Status& status) {
  const int64_t now = clock_->MonotonicNanos();
  if (failing_ && now - told_ns_ < absl::ToInt64Nanoseconds(kTellAgain)) return;
  failing_ = true;
  told_ns_ = now;
  logger_->Log(Logger::Severity::kWarning, "not_stored",
               {{"status", status.ToString()},
                {"so", "all is kept here and tried again"}});
}

bool Uploader::Round(const std::function<bool()>& stop) {
  Sealer::Report report;
  const absl::Status status = sealer_->SealReady(stop, &report);
  if (report.sets > 0) {
    logger_->Info("stored",
                  {{"sets", absl::StrCat(report.sets)},
                   {"steps", absl::StrCat(report.steps)},
                   {"addenda", absl::StrCat(report.addenda)},
                   {"bytes", absl::StrCat(report.bytes)},
                   {"freed_steps", absl::StrCat(report.freed_steps)}});
  }
  for (const std::string& what : report.repaired) {
    logger_->Log(Logger::Severity::kWarning, "store_repaired",
                 {{"what", what}});
  }
  if (status.ok()) {
    if (failing_) logger_->Info("stored_again");
    failing_ = false;
    return true;
  }
  if (report.fenced) {
    logger_->Error("storing_ended", {{"status", status.ToString()}});
    return false;
  }
  Tell(status);
  return true;
}

void Uploader::Run() {
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)),
                    getpriority(PRIO_PROCESS, 0) + kUploaderNice);
  const auto stopping = [this] { return stop_.WaitFor(absl::ZeroDuration()); };
  while (!stop_.WaitFor(options_.interval)) {
    if (!Round(stopping)) return;
  }
  const int64_t begin_ns = clock_->MonotonicNanos();
  const auto over = [&] {
    return absl::Nanoseconds(clock_->MonotonicNanos() - begin_ns) >
           options_.last_round;
  };
  // Retries if the store is overloaded for a moment.
  MonotonicEvent never;
  while (Round(over) && failing_ && !over() &&
         !never.WaitFor(options_.last_again)) {
  }
}

}  // namespace rankprobe
