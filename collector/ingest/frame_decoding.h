// SPDX-License-Identifier: Apache-2.0
// An UploadFrame from its bytes. gRPC's own parser ends the stream without a
// reason if bytes are not a message; here the frame's number is still found, so
// that it can be refused and its neighbours kept. Thread-safe: pure functions.
#ifndef RANKPROBE_COLLECTOR_INGEST_FRAME_DECODING_H_
#define RANKPROBE_COLLECTOR_INGEST_FRAME_DECODING_H_

#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

// DATA_LOSS if the bytes do not match their checksum, so they were damaged in
// transit; `*frame` is then empty. INVALID_ARGUMENT if they were sent like this
// and are not an UploadFrame, have text that is not UTF-8, or are nested deeper
// than protobuf reads; `*frame` is then empty except for the number, if it was
// found. `*data_checked` is set if the data of the chunk was compared with its
// checksum.
absl::Status DecodeFrame(grpc::ByteBuffer* untrusted, v1::UploadFrame* frame,
                         bool* data_checked);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_FRAME_DECODING_H_
