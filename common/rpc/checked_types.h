// SPDX-License-Identifier: Apache-2.0
// The messages that generated stubs and services write and read with a
// checksum. Each generated *.grpc.pb.h includes this (proto/CMakeLists.txt), so
// that no source that sends one of them can miss it. A test holds the lists
// against the services.
#ifndef RANKPROBE_COMMON_RPC_CHECKED_TYPES_H_
#define RANKPROBE_COMMON_RPC_CHECKED_TYPES_H_

#include <grpcpp/impl/serialization_traits.h>

#include "common/rpc/checked_message.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/archive.pb.h"
#include "rankprobe/v1/control.pb.h"
#include "rankprobe/v1/leaf.pb.h"

// Messages of long streams, which declare a field for the checksum.
#define RANKPROBE_CHECKED_STREAMS(X) \
  X(AgentEvent)                      \
  X(Directive)                       \
  X(UploadFrame)                     \
  X(UploadAck)                       \
  X(LeafReport)                      \
  X(RootNote)                        \
  X(LiveAnswer)

#define RANKPROBE_CHECKED_REQUESTS(X) \
  X(ListRunsRequest)                  \
  X(ListStepsRequest)                 \
  X(ListCallsRequest)                 \
  X(GetTensorRequest)                 \
  X(ExportRequest)                    \
  X(GetLedgerRequest)                 \
  X(QueryGridRequest)                 \
  X(QuerySeriesRequest)               \
  X(ListModulesRequest)               \
  X(ReadValuesRequest)                \
  X(VerifyRequest)                    \
  X(DeleteRequest)                    \
  X(BackupRequest)                    \
  X(SetConfigRequest)                 \
  X(SetDumpEnableRequest)             \
  X(GetConfigRequest)                 \
  X(ListAgentsRequest)                \
  X(ExplainRequest)                   \
  X(SetTriggersRequest)               \
  X(GetTriggersRequest)               \
  X(ShipFlightRequest)                \
  X(ListEventsRequest)                \
  X(ReferenceRequest)                 \
  X(FindCollectorRequest)

#define RANKPROBE_CHECKED_ANSWERS(X) \
  X(ListRunsResponse)                \
  X(ListStepsResponse)               \
  X(CallEntry)                       \
  X(TensorBytes)                     \
  X(ExportEvent)                     \
  X(StepLedger)                      \
  X(GridReply)                       \
  X(SeriesReply)                     \
  X(ListModulesResponse)             \
  X(ValuesReply)                     \
  X(VerifyReport)                    \
  X(DeleteReport)                    \
  X(BackupReport)                    \
  X(SwitchResult)                    \
  X(GetConfigResponse)               \
  X(ListAgentsResponse)              \
  X(ExplainResponse)                 \
  X(SetTriggersResponse)             \
  X(TriggerSpec)                     \
  X(ShipFlightResponse)              \
  X(ListEventsResponse)              \
  X(ReferenceChunk)                  \
  X(FoundCollector)                  \
  X(LiveAnswered)

namespace grpc {

#define RANKPROBE_CHECKED(type, ...)                   \
  template <>                                          \
  class SerializationTraits<rankprobe::v1::type, void> \
      : public rankprobe::__VA_ARGS__ {};
#define RANKPROBE_STREAM(type) \
  RANKPROBE_CHECKED(type, CheckedTraits<rankprobe::v1::type>)
#define RANKPROBE_REQUEST(type) \
  RANKPROBE_CHECKED(            \
      type, CallTraits<rankprobe::v1::type, rankprobe::CallPart::kRequest>)
#define RANKPROBE_ANSWER(type) \
  RANKPROBE_CHECKED(           \
      type, CallTraits<rankprobe::v1::type, rankprobe::CallPart::kAnswer>)

RANKPROBE_CHECKED_STREAMS(RANKPROBE_STREAM)
RANKPROBE_CHECKED_REQUESTS(RANKPROBE_REQUEST)
RANKPROBE_CHECKED_ANSWERS(RANKPROBE_ANSWER)

// Calls with one answer are deserialized through the base class of all
// messages.
template <>
class SerializationTraits<google::protobuf::MessageLite, void>
    : public rankprobe::CallTraits<google::protobuf::MessageLite,
                                   rankprobe::CallPart::kAnswer> {};

#undef RANKPROBE_ANSWER
#undef RANKPROBE_REQUEST
#undef RANKPROBE_STREAM
#undef RANKPROBE_CHECKED

}  // namespace grpc

#endif  // RANKPROBE_COMMON_RPC_CHECKED_TYPES_H_
