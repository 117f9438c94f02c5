// SPDX-License-Identifier: Apache-2.0
// Structured log lines, key=value, to one file descriptor. Thread-safe: one
// write a line. Owned by main; outlives everything that holds a pointer to it.
#ifndef RANKPROBE_COMMON_BASE_LOGGER_H_
#define RANKPROBE_COMMON_BASE_LOGGER_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/base/clock.h"

namespace rankprobe {

class Logger {
 public:
  enum class Severity { kDebug, kInfo, kWarning, kError };
  using Field = std::pair<absl::string_view, std::string>;

  Logger(int fd, Severity least, const Clock* clock)
      : fd_(fd), least_(least), clock_(clock) {}

  void Log(Severity severity, absl::string_view event,
           absl::Span<const Field> fields) const;
  void Log(Severity severity, absl::string_view event,
           std::initializer_list<Field> fields) const {
    Log(severity, event, absl::MakeConstSpan(fields.begin(), fields.size()));
  }
  void Info(absl::string_view event,
            std::initializer_list<Field> fields = {}) const {
    Log(Severity::kInfo, event, fields);
  }
  void Error(absl::string_view event,
             std::initializer_list<Field> fields = {}) const {
    Log(Severity::kError, event, fields);
  }

  const Clock* clock() const { return clock_; }

 private:
  const int fd_;
  const Severity least_;
  const Clock* const clock_;
};

// Logs lines that clients can cause at will: at most ten a second of each
// event; the rest is counted and reported with the next line. Thread-safe; the
// Logger outlives it.
class LogLimiter {
 public:
  explicit LogLimiter(const Logger* logger) : logger_(logger) {}

  void Log(Logger::Severity severity, absl::string_view event,
           std::vector<Logger::Field> fields);

 private:
  struct Window {
    int64_t began_ns = 0;
    int lines = 0;
    uint64_t left_out = 0;
  };

  const Logger* const logger_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Window> windows_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_LOGGER_H_
