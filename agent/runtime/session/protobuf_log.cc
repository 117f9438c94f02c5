// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/protobuf_log.h"

#include <google/protobuf/stubs/logging.h>

#include <atomic>
#include <string>

#include "absl/strings/match.h"

namespace rankprobe {
namespace {

std::atomic<google::protobuf::LogHandler*> g_before{nullptr};

void OnLog(google::protobuf::LogLevel level, const char* file, int line,
           const std::string& message) {
  if (absl::StrContains(message, "rankprobe.v1.")) return;
  google::protobuf::LogHandler* const before = g_before.load();
  if (before != nullptr) before(level, file, line, message);
}

}  // namespace

void DropProtobufLinesAboutUs() {
  [[maybe_unused]] static const bool done = [] {
    g_before = google::protobuf::SetLogHandler(OnLog);
    return true;
  }();
}

}  // namespace rankprobe
