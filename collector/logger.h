// Structured log lines, key=value, to one file descriptor. Thread-safe: one
// write a line. Owned by main; outlives everything that was given a pointer.
#ifndef RANKPROBE_COLLECTOR_LOGGER_H_
#define RANKPROBE_COLLECTOR_LOGGER_H_

#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/clock.h"

namespace rankprobe {

class Logger {
 public:
  enum class Severity { kDebug, kInfo, kWarning, kError };
  using Field = std::pair<absl::string_view, std::string>;

  Logger(int fd, Severity least, const Clock* clock)
      : fd_(fd), least_(least), clock_(clock) {}

  void Log(Severity severity, absl::string_view event,
           std::initializer_list<Field> fields) const;
  void Info(absl::string_view event,
            std::initializer_list<Field> fields = {}) const {
    Log(Severity::kInfo, event, fields);
  }
  void Error(absl::string_view event,
             std::initializer_list<Field> fields = {}) const {
    Log(Severity::kError, event, fields);
  }

 private:
  const int fd_;
  const Severity least_;
  const Clock* const clock_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_LOGGER_H_
