// SPDX-License-Identifier: Apache-2.0
// A .pt file of one contiguous tensor, as a stream: everything before the
// bytes, the bytes in order, everything after. torch.load(weights_only=True) of
// PyTorch 1.13 and 2.x opens it. Layout: docs/formats.md, ".pt files".
#ifndef RANKPROBE_DUMP_FORMAT_PT_WRITER_H_
#define RANKPROBE_DUMP_FORMAT_PT_WRITER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

class PtWriter {
 public:
  // `archive_name` is the file's name without ".pt".
  PtWriter(absl::string_view archive_name, v1::DType dtype,
           absl::Span<const int64_t> shape, uint64_t data_bytes);

  // Everything before the tensor's bytes.
  const std::string& prefix() const { return prefix_; }
  // Updates the checksum; call it for all bytes in order.
  void AddData(absl::string_view data);
  // Returns the file's bytes for the tensor's, which are the same.
  absl::string_view Encode(absl::string_view data) { return data; }
  // Everything after the tensor's bytes.
  std::string Suffix() const;
  // Size of the complete file.
  uint64_t FileBytes() const;

 private:
  struct Member {
    std::string name;
    uint64_t header_offset = 0;
    uint64_t size = 0;
    uint32_t crc32 = 0;
  };

  void AddSmallMember(absl::string_view name, absl::string_view content);
  std::string SuffixWithCrc(uint32_t crc32) const;

  const std::string root_;
  const uint64_t data_bytes_;
  std::string prefix_;
  std::vector<Member> members_;  // the last one is the tensor's data
  uint32_t crc32_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_PT_WRITER_H_
