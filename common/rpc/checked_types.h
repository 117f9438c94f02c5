// SPDX-License-Identifier: Apache-2.0
// The messages that generated stubs and services write and read with a checksum.
// Each generated *.grpc.pb.h includes this (proto/CMakeLists.txt), so that no
// source that sends one of them can miss it.
#ifndef RANKPROBE_COMMON_RPC_CHECKED_TYPES_H_
#define RANKPROBE_COMMON_RPC_CHECKED_TYPES_H_

#include <grpcpp/impl/serialization_traits.h>

#include "common/rpc/checked_message.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/leaf.pb.h"

namespace grpc {

#define RANKPROBE_CHECKED(type)                        \
  template <>                                          \
  class SerializationTraits<rankprobe::v1::type, void> \
      : public rankprobe::CheckedTraits<rankprobe::v1::type> {}

RANKPROBE_CHECKED(AgentEvent);
RANKPROBE_CHECKED(Directive);
RANKPROBE_CHECKED(UploadFrame);
RANKPROBE_CHECKED(UploadAck);
RANKPROBE_CHECKED(LeafReport);
RANKPROBE_CHECKED(RootNote);
RANKPROBE_CHECKED(LiveAnswer);

#undef RANKPROBE_CHECKED

}  // namespace grpc

#endif  // RANKPROBE_COMMON_RPC_CHECKED_TYPES_H_
