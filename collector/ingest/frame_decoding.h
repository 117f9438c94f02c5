// SPDX-License-Identifier: Apache-2.0
// An UploadFrame from its bytes. gRPC's own way ends the stream without a word
// when bytes are no message; here the frame's number is still found, so that it
// can be refused and its neighbours kept. Thread-safe: pure functions.
#ifndef RANKPROBE_COLLECTOR_INGEST_FRAME_DECODING_H_
#define RANKPROBE_COLLECTOR_INGEST_FRAME_DECODING_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/status.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

// DATA_LOSS: the bytes were damaged in transit, they do not match their checksum;
// `*frame` is then empty. INVALID_ARGUMENT: they are as they were sent and no
// UploadFrame, not UTF-8 where text stands, or deeper than protobuf reads; `*frame`
// is then empty but for the number, if it was found.
// `*data_checked`: the data of the chunk in it is of the chunk's checksum.
absl::Status DecodeFrame(grpc::ByteBuffer* untrusted, v1::UploadFrame* frame,
                         bool* data_checked);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_FRAME_DECODING_H_
