// SPDX-License-Identifier: Apache-2.0
// Opens a .pt file that holds one tensor, or a .npy file of numbers. The pickle
// is read by an interpreter that knows only tensors: any other global is
// refused before anything is built, so a malicious file causes only an error. A
// PtTensor is immutable and thread-safe; it keeps its file open.
#ifndef RANKPROBE_DUMP_FORMAT_PT_READER_H_
#define RANKPROBE_DUMP_FORMAT_PT_READER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

class PtTensor {
 public:
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  std::vector<int64_t> shape;
  int64_t elements = 0;

  // Reads elements [begin, begin + out.size()) in row-major order, as numbers;
  // a complex element becomes its absolute value. The version for floats
  // rounds.
  absl::Status Read(int64_t begin, absl::Span<double> out) const;
  absl::Status Read(int64_t begin, absl::Span<float> out) const;
  // Reads `count` elements as stored, ElementSize(dtype) bytes each.
  absl::Status ReadRaw(int64_t begin, size_t count, char* bytes) const {
    return Gather(begin, count, bytes);
  }

 private:
  template <typename T>
  absl::Status ReadAs(int64_t begin, absl::Span<T> out) const;
  absl::Status Gather(int64_t begin, size_t count, char* bytes) const;
  friend absl::StatusOr<PtTensor> OpenPt(FileSystem* file_system,
                                         const std::string& path);
  std::unique_ptr<RandomAccessFile> file_;
  std::string path_;
  uint64_t data_begin_ = 0;  // of the first element in the file
  bool contiguous_ = true;
  std::vector<int64_t> stride_;
};

// INVALID_ARGUMENT or NOT_FOUND in one line that names the file; UNIMPLEMENTED
// for a .npy file without numbers.
absl::StatusOr<PtTensor> OpenPt(FileSystem* file_system,
                                const std::string& path);

// Converts stored elements to numbers, as PtTensor::Read does. INVALID_ARGUMENT
// for a type without numbers, or if the size is not that of out.size()
// elements.
absl::Status DecodeElements(v1::DType dtype, absl::string_view bytes,
                            absl::Span<double> out);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_PT_READER_H_
