// SPDX-License-Identifier: Apache-2.0
#include "collector/server/protobuf_log.h"

#include <google/protobuf/stubs/logging.h>

#include <memory>
#include <string>

#include "absl/base/attributes.h"
#include "absl/synchronization/mutex.h"

namespace rankprobe {
namespace {

// Global, because libprotobuf's log handler takes no user argument.
ABSL_CONST_INIT absl::Mutex g_mutex(absl::kConstInit);
std::unique_ptr<LogLimiter>& Log() ABSL_EXCLUSIVE_LOCKS_REQUIRED(g_mutex) {
  static auto* const log = new std::unique_ptr<LogLimiter>();
  return *log;
}

void OnLog(google::protobuf::LogLevel level, const char* /*file*/, int /*line*/,
           const std::string& message) {
  absl::MutexLock lock(&g_mutex);
  if (Log() == nullptr) return;
  Log()->Log(level >= google::protobuf::LOGLEVEL_WARNING
                 ? Logger::Severity::kWarning
                 : Logger::Severity::kDebug,
             "protobuf", {{"message", message}});
}

}  // namespace

ProtobufLog::ProtobufLog(const Logger* logger) {
  {
    absl::MutexLock lock(&g_mutex);
    Log() = std::make_unique<LogLimiter>(logger);
  }
  google::protobuf::SetLogHandler(OnLog);
}

ProtobufLog::~ProtobufLog() {
  google::protobuf::SetLogHandler(nullptr);
  absl::MutexLock lock(&g_mutex);
  Log() = nullptr;
}

}  // namespace rankprobe
