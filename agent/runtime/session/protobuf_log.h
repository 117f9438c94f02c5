// SPDX-License-Identifier: Apache-2.0
// Keeps libprotobuf from writing raw lines about a collector's messages to the
// stderr of the program that is watched.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_PROTOBUF_LOG_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_PROTOBUF_LOG_H_

namespace rankprobe {

// From the first call on, messages of libprotobuf about rankprobe.v1 are
// dropped: the stream that received the bad bytes ends with a status. The
// program may use the same library, so messages about other types are still
// printed. May be called from any thread, any number of times.
void DropProtobufLinesAboutUs();

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_PROTOBUF_LOG_H_
