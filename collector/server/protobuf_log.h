// SPDX-License-Identifier: Apache-2.0
// Messages of libprotobuf as lines of the Logger: by default it writes raw text
// to stderr, including parts of untrusted messages.
#ifndef RANKPROBE_COLLECTOR_SERVER_PROTOBUF_LOG_H_
#define RANKPROBE_COLLECTOR_SERVER_PROTOBUF_LOG_H_

#include "common/base/logger.h"

namespace rankprobe {

// Active during its lifetime, which must end before the Logger's. One per
// process; created before other threads parse messages. Messages of libprotobuf
// after its end are dropped.
class ProtobufLog {
 public:
  explicit ProtobufLog(const Logger* logger);
  ~ProtobufLog();

  ProtobufLog(const ProtobufLog&) = delete;
  ProtobufLog& operator=(const ProtobufLog&) = delete;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_PROTOBUF_LOG_H_
