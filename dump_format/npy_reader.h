// SPDX-License-Identifier: Apache-2.0
// The header of a .npy file: NumPy's format 1 to 3, little-endian numbers. Pure
// functions; no part of the file is trusted.
#ifndef RANKPROBE_DUMP_FORMAT_NPY_READER_H_
#define RANKPROBE_DUMP_FORMAT_NPY_READER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// "<f4"; empty for a type that NumPy lacks.
absl::string_view NpyTypeOf(v1::DType dtype);

struct NpyHeader {
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  // The first index varies fastest.
  bool fortran_order = false;
  std::vector<int64_t> shape;
  // Offset of the elements in the file.
  uint64_t data_begin = 0;
};

// Parses the first bytes of a file, at most kMaxNpyHeaderBytes of them.
// INVALID_ARGUMENT if it is not a .npy file, UNIMPLEMENTED if its elements are
// not numbers (texts, objects, big-endian).
inline constexpr uint64_t kMaxNpyHeaderBytes = 1 << 16;
absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view bytes);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_NPY_READER_H_
