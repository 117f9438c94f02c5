// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/queue/buffers.h"

namespace rankprobe {

RecordBuffer::RecordBuffer()
    : arena_([] {
        google::protobuf::ArenaOptions options;
        options.start_block_size = 4 << 10;
        options.max_block_size = 64 << 10;
        return std::make_unique<google::protobuf::Arena>(options);
      }()),
      batch_(google::protobuf::Arena::CreateMessage<v1::RecordBatch>(
          arena_.get())) {}

}  // namespace rankprobe
