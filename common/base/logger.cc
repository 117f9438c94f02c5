// SPDX-License-Identifier: Apache-2.0
#include "common/base/logger.h"

#include <unistd.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace rankprobe {

void Logger::Log(Severity severity, absl::string_view event,
                 absl::Span<const Field> fields) const {
  if (severity < least_) return;
  constexpr absl::string_view kNames[] = {"debug", "info", "warning", "error"};
  std::string line = absl::StrCat("time=", absl::FormatTime(clock_->Now()),
                                  " level=", kNames[static_cast<int>(severity)],
                                  " event=", event);
  for (const Field& field : fields)
    absl::StrAppend(&line, " ", field.first, "=\"", absl::CEscape(field.second),
                    "\"");
  line.push_back('\n');
  // Ignored, because there is no other place to report an error to.
  (void)!::write(fd_, line.data(), line.size());
}

void LogLimiter::Log(Logger::Severity severity, absl::string_view event,
                     std::vector<Logger::Field> fields) {
  constexpr int kLinesASecond = 10;
  constexpr int64_t kSecondNs = 1000000000;
  {
    absl::MutexLock lock(&mutex_);
    const int64_t now = logger_->clock()->MonotonicNanos();
    Window& window = windows_[event];
    if (window.lines == 0 || now - window.began_ns >= kSecondNs) {
      window.began_ns = now;
      window.lines = 0;
    }
    if (window.lines >= kLinesASecond) {
      ++window.left_out;
      return;
    }
    ++window.lines;
    if (window.left_out > 0) {
      fields.emplace_back("left_out", absl::StrCat(window.left_out));
      window.left_out = 0;
    }
  }
  logger_->Log(severity, event, fields);
}

}  // namespace rankprobe
