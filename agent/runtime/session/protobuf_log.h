// SPDX-License-Identifier: Apache-2.0
// Keeps libprotobuf from writing raw lines about a collector's messages to the
// stderr of the program that is watched.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_PROTOBUF_LOG_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_PROTOBUF_LOG_H_

namespace rankprobe {

// From then on what libprotobuf has to say about messages of rankprobe.v1 is
// dropped: the stream that brought them ends with a status. The library may be
// the program's, too: what is said of other messages goes where it went before.
// Any thread; any number of times.
void DropProtobufLinesAboutUs();

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_PROTOBUF_LOG_H_
