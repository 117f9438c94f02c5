// SPDX-License-Identifier: Apache-2.0
#include "dump_format/npy_writer.h"

#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

constexpr char kMagic[] = "\x93NUMPY\x01";  // and the zero of version 1.0
constexpr size_t kHeaderAlignment = 64;
constexpr int kMaxDimensions = 64;  // NumPy's
constexpr uint64_t kMaxLength = uint64_t{1} << 30;

}  // namespace

std::optional<uint64_t> NumpyTextElementBytes(const v1::TensorSummary& tensor) {
  if (!tensor.numpy() || tensor.dtype() != v1::DTYPE_UNSPECIFIED ||
      tensor.shape_size() > kMaxDimensions)
    return std::nullopt;
  const absl::string_view dtype = tensor.numpy_dtype();
  if (dtype.size() < 3 || dtype.size() > 12) return std::nullopt;
  const bool wide = dtype[1] == 'U' && (dtype[0] == '<' || dtype[0] == '>');
  if (!wide && !absl::StartsWith(dtype, "|S")) return std::nullopt;
  uint64_t length = 0;
  if (!absl::SimpleAtoi(dtype.substr(2), &length) || length > kMaxLength ||
      absl::StrCat(length) != dtype.substr(2)) {
    return std::nullopt;
  }
  return wide ? 4 * length : length;
}

NpyWriter::NpyWriter(const v1::TensorSummary& tensor, uint64_t data_bytes)
    : data_bytes_(data_bytes) {
  std::string header = absl::StrCat("{'descr': '", tensor.numpy_dtype(),
                                    "', 'fortran_order': False, 'shape': (");
  for (const int64_t size : tensor.shape())
    absl::StrAppend(&header, size, ", ");
  absl::StrAppend(&header, "), }");
  prefix_.assign(kMagic, sizeof(kMagic));
  const size_t fixed = prefix_.size() + 2 + 1;
  header.append(kHeaderAlignment - (fixed + header.size()) % kHeaderAlignment,
                ' ');
  header.push_back('\n');
  prefix_.push_back(static_cast<char>(header.size() & 0xff));
  prefix_.push_back(static_cast<char>(header.size() >> 8));
  prefix_.append(header);
}

}  // namespace rankprobe
