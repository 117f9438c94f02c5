// SPDX-License-Identifier: Apache-2.0
// A .npy file (NumPy's format 1.0) as a stream like PtWriter's: everything
// before the bytes, the bytes in order, nothing after. It holds a text array,
// or a tensor of a framework whose tools write .npy instead of .pt.
#ifndef RANKPROBE_DUMP_FORMAT_NPY_WRITER_H_
#define RANKPROBE_DUMP_FORMAT_NPY_WRITER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// Bytes of one element of a NumPy text array, "<U3" (12) or "
// S2" (2); nullopt if this is not such an array. `tensor` is not trusted.
std::optional<uint64_t> NumpyTextElementBytes(const v1::TensorSummary& tensor);

class NpyWriter {
 public:
  // `tensor`: an array accepted by NumpyTextElementBytes.
  NpyWriter(const v1::TensorSummary& tensor, uint64_t data_bytes);
  // For a dense tensor of `data_bytes`. A type that NumPy lacks (bfloat16,
  // float8) is written as float32, which can represent all its numbers.
  NpyWriter(v1::DType dtype, absl::Span<const int64_t> shape,
            uint64_t data_bytes);

  const std::string& prefix() const { return prefix_; }
  void AddData(absl::string_view /*data*/) {}
  // Converts bytes of the tensor to those of the file; call it for all bytes in
  // order. The result is valid until the next call.
  absl::string_view Encode(absl::string_view data);
  std::string Suffix() const { return ""; }
  uint64_t FileBytes() const { return prefix_.size() + data_bytes_; }

 private:
  // Unset if the bytes are written unchanged.
  v1::DType widened_ = v1::DTYPE_UNSPECIFIED;
  // Half an element, left from the last call.
  std::string rest_, out_;
  uint64_t data_bytes_;
  std::string prefix_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_NPY_WRITER_H_
