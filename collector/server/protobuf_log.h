// SPDX-License-Identifier: Apache-2.0
// Messages of libprotobuf as lines of the Logger: it would write raw text,
// parts of a foreign message included, to stderr.
#ifndef RANKPROBE_COLLECTOR_SERVER_PROTOBUF_LOG_H_
#define RANKPROBE_COLLECTOR_SERVER_PROTOBUF_LOG_H_

#include "common/base/logger.h"

namespace rankprobe {

// While it lives, which is no longer than the Logger. One in a process; made
// before others parse messages. What libprotobuf says afterwards is dropped.
class ProtobufLog {
 public:
  explicit ProtobufLog(const Logger* logger);
  ~ProtobufLog();

  ProtobufLog(const ProtobufLog&) = delete;
  ProtobufLog& operator=(const ProtobufLog&) = delete;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_PROTOBUF_LOG_H_
