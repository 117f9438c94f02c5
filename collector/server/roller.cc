// SPDX-License-Identifier: Apache-2.0
#include "collector/server/roller.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

// Gives it a tenth of a processor if threads that take frames are busy.
constexpr int kRollerNice = 10;

}  // namespace

Roller::Roller(Store* store, const Logger* logger, absl::Duration interval)
    : logger_(logger), interval_(interval), maker_(store), summaries_(store) {}

Roller::~Roller() { Stop(); }

void Roller::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Roller::Stop() {
  stop_.Set();
  if (thread_.joinable()) thread_.join();
}

void Roller::Run() {
  // On Linux this affects only the calling thread. The result is ignored:
  // without it the roller only has a higher priority.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)),
                    getpriority(PRIO_PROCESS, 0) + kRollerNice);
  while (!stop_.WaitFor(interval_)) {
    const auto cancelled = [this] {
      return stop_.WaitFor(absl::ZeroDuration());
    };
    const RollupMaker::Report report = maker_.RollUpPending(cancelled);
    if (const auto made = summaries_.MakePending(cancelled); !made.ok()) {
      logger_->Log(Logger::Severity::kWarning, "summaries_failed",
                   {{"status", made.status().ToString()},
                    {"so", "queries read the summary of each step"}});
    }
    if (report.aside == 0) continue;
    logger_->Log(Logger::Severity::kWarning, "rollup_failed",
                 {{"steps", absl::StrCat(report.aside)},
                  {"status", report.why.ToString()},
                  {"so", "queries of these steps read their records"}});
  }
}

}  // namespace rankprobe
